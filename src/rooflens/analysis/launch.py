"""The command line that starts an engine as a configuration says."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

# Formats that an engine makes from a 16-bit checkpoint at start-up; others need a checkpoint of their own.
_ONLINE = {"vllm": {"fp8": "fp8"}, "sglang": {"fp8": "fp8"}}
_CACHES = {
    "vllm": {"fp8": "fp8"},
    "sglang": {"fp8": "fp8_e4m3"},
    "llama.cpp": {"q8_0": "q8_0", "fp16": "f16"},
}


@dataclass(frozen=True)
class Launch:
    """What a start-up line says: ``weights`` None is the checkpoint's own format, lengths in tokens."""

    engine: str
    model: str
    weights: str | None
    kv_dtype: str | None
    tp: int
    pp: int
    dp: int
    max_model_len: int
    max_sequences: int
    budget: int


def command_line(launch: Launch) -> str:
    """The line for one machine: vLLM, SGLang, llama.cpp's server or Rooflens's own.

    A format that the engine cannot make by itself needs a checkpoint in it, which the line's model name says.
    """
    builders = {"vllm": _vllm, "sglang": _sglang, "llama.cpp": _llama_cpp, "ollama": _llama_cpp}
    words = builders.get(launch.engine, _rooflens)(launch)
    return shlex.join(words)


def _model(launch: Launch) -> tuple[str, list[str]]:
    """The model to name, and the option that quantises it."""
    if launch.weights is None:
        return launch.model, []
    online = _ONLINE.get(launch.engine, {}).get(launch.weights)
    if online:
        return launch.model, ["--quantization", online]
    return f"{launch.model}-{launch.weights.upper()}", []


def _cache(launch: Launch, option: str) -> list[str]:
    name = _CACHES.get(launch.engine, {}).get(launch.kv_dtype or "")
    return [option, name] if name else []


def _parallel(launch: Launch, names: tuple[str, str, str]) -> list[str]:
    degrees = zip(names, (launch.tp, launch.pp, launch.dp), strict=True)
    return [word for name, degree in degrees if degree > 1 for word in (name, str(degree))]


def _vllm(launch: Launch) -> list[str]:
    model, quantised = _model(launch)
    return [
        "vllm", "serve", model, *quantised, *_cache(launch, "--kv-cache-dtype"),
        *_parallel(launch, ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")),
        "--max-model-len", str(launch.max_model_len), "--max-num-seqs", str(launch.max_sequences),
        "--max-num-batched-tokens", str(launch.budget),
    ]  # fmt: skip


def _sglang(launch: Launch) -> list[str]:
    model, quantised = _model(launch)
    return [
        "python", "-m", "sglang.launch_server", "--model-path", model, *quantised,
        *_cache(launch, "--kv-cache-dtype"), *_parallel(launch, ("--tp", "--pp-size", "--dp")),
        "--context-length", str(launch.max_model_len), "--max-running-requests", str(launch.max_sequences),
        "--chunked-prefill-size", str(launch.budget),
    ]  # fmt: skip


def _llama_cpp(launch: Launch) -> list[str]:
    name = launch.model.rpartition("/")[2]
    cache = _CACHES["llama.cpp"].get(launch.kv_dtype or "")
    typed = ["--cache-type-k", cache, "--cache-type-v", cache] if cache else []
    return [
        "llama-server", "-m", f"{name}-{(launch.weights or 'f16').upper()}.gguf", "-ngl", "999",
        "-c", str(launch.max_model_len * launch.max_sequences), "-np", str(launch.max_sequences), *typed,
    ]  # fmt: skip


def _rooflens(launch: Launch) -> list[str]:
    quantised = ["--weights", launch.weights] if launch.weights else []
    return [
        "rooflens", "serve", launch.model, *quantised, "--max-model-len", str(launch.max_model_len),
        "--max-sequences", str(launch.max_sequences), "--max-batched-tokens", str(launch.budget),
    ]  # fmt: skip
