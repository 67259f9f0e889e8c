"""How element types are spelt: one name for each, whatever configs, drivers, checkpoints and people write."""

from __future__ import annotations

DTYPE_ALIASES: dict[str, str] = {
    "float64": "fp64", "double": "fp64", "f64": "fp64",
    "float32": "fp32", "float": "fp32", "f32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16", "half": "fp16", "f16": "fp16",
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
    "f8_e4m3": "fp8", "f8_e5m2": "fp8",
}  # fmt: skip


def spelt(text: str) -> str:
    """The name of a type in Rooflens's spelling; text that names none comes back in lower case."""
    name = text.strip().lower().removeprefix("torch.")
    return DTYPE_ALIASES.get(name, name)
