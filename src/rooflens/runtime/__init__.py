"""The native runtime: real models on this device, module by module as the prediction names them.

Needs torch. The names below are loaded when they are first used, so that importing the package is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rooflens.errors import DependencyError

if TYPE_CHECKING:
    from rooflens.runtime.backend import NativeBackend
    from rooflens.runtime.generate import Generation
    from rooflens.runtime.model import DecoderModel, Qwen2Model
    from rooflens.runtime.parallel import TensorParallel
    from rooflens.runtime.sampling import SamplingParams
    from rooflens.runtime.weights import load_qwen2_weights

_HOMES = {
    "DecoderModel": "model",
    "Generation": "generate",
    "NativeBackend": "backend",
    "Qwen2Model": "model",
    "SamplingParams": "sampling",
    "TensorParallel": "parallel",
    "load_qwen2_weights": "weights",
}
_LIBRARIES = ("torch", "tokenizers", "jinja2", "gguf", "safetensors")

__all__ = [
    "DecoderModel",
    "Generation",
    "NativeBackend",
    "Qwen2Model",
    "SamplingParams",
    "TensorParallel",
    "load_qwen2_weights",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module; raises DependencyError where a library is not installed."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rooflens.runtime' has no attribute {name!r}")
    try:
        return getattr(import_module(f"rooflens.runtime.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in _LIBRARIES:
            raise
        raise DependencyError(
            f"the runtime needs {error.name}, which is not installed",
            next="install it with: pip install 'rooflens[runtime]'",
        ) from None
