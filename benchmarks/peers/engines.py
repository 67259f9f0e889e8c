"""The engines that are compared: environment, worker, and the form of the model in each format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

#: The engine that every ratio is against.
OURS = "rooflens"
FORMATS = ("bf16", "int8", "int4")
#: A GGUF file's own formats.
STORED = "stored"


@dataclass(frozen=True)
class Form:
    """One way to hold the model: ``made_by`` names what writes it (see ``forms.py``).

    ``label`` is what users of the engine call it; ``held`` (Rooflens alone) how the
    backend holds the weights.
    """

    made_by: str
    label: str
    held: str = ""


@dataclass(frozen=True)
class Engine:
    """One line of the comparison. ``environment`` is empty for Rooflens's own Python.

    ``variant`` tells a worker that serves two engines which of them it is. ``gguf``: weights that it makes
    of a GGUF file itself.
    """

    name: str
    environment: str
    worker: str
    forms: Mapping[str, Form]
    variant: str = ""
    gguf: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


_OURS = {
    "bf16": Form("directory", "bf16"),
    "int8": Form("directory", "int8, groups of 32", held="int8"),
    "int4": Form("directory", "int4, groups of 32, 8-bit head", held="int4"),
}

ENGINES = (
    Engine(OURS, "", "rooflens_worker", _OURS, variant="native", gguf=(STORED, *FORMATS)),
    Engine("rooflens-torch", "", "rooflens_worker", _OURS, variant="cpu", gguf=(STORED, *FORMATS)),
    Engine(
        "llama.cpp",
        "llama.cpp",
        "llama_cpp_worker",
        {
            "bf16": Form("gguf-bf16", "bf16"),
            "int8": Form("gguf-q8_0", "Q8_0"),
            "int4": Form("gguf-q4_0", "Q4_0"),
        },
        gguf=(STORED,),
    ),
    Engine(
        "transformers",
        "transformers",
        "transformers_worker",
        {"bf16": Form("directory", "bf16, eager")},
        gguf=("bf16",),
    ),
    Engine(
        "OpenVINO GenAI",
        "openvino",
        "openvino_worker",
        {
            "bf16": Form("openvino-bf16", "bf16"),
            "int8": Form("openvino-int8", "int8, per channel"),
            "int4": Form("openvino-int4", "int4, groups of 32, 8-bit head"),
        },
    ),
    Engine(
        "onnxruntime-genai",
        "onnxruntime-genai",
        "onnxruntime_worker",
        {
            "int8": Form("onnx-int8", "int8, block 32"),
            "int4": Form("onnx-int4", "int4, block 32"),
        },
    ),
    Engine(
        "vLLM CPU",
        "vllm",
        "vllm_worker",
        {"bf16": Form("directory", "bf16")},
        variables={"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "2"},
    ),
)


def form_of_file(engine: Engine, weights: str, stem: str) -> Form | None:
    """A GGUF file as an engine takes it; None for weights that it does not make of one.

    All but ``stored`` are made of the values that the file's blocks stand for.
    """
    if weights not in engine.gguf:
        return None
    if weights != STORED:
        form = engine.forms[weights]
        return replace(form, made_by="", label=f"{form.label}, made of {stem}")
    if engine.variant == "cpu":  # Rooflens's torch path has no kernels for the file's blocks
        return Form("", f"{stem}, expanded to bf16")
    return Form("", stem, held=STORED if engine.variant else "")


def find_engines(names: str | None) -> tuple[Engine, ...]:
    """Engines by comma-separated names, ours always with them. Raises SystemExit for an unknown one."""
    if names is None:
        return ENGINES
    by_name = {_plain(engine.name): engine for engine in ENGINES}
    wanted = {_plain(OURS), *(_plain(name) for name in names.split(","))}
    if unknown := wanted - by_name.keys():
        raise SystemExit(f"no such engine: {', '.join(sorted(unknown))}; there are {', '.join(by_name)}")
    return tuple(engine for name, engine in by_name.items() if name in wanted)


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "-")
