"""Which kernel set a device gets."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rooflens.errors import InputError
from rooflens.runtime.kernels.base import Kernels


def kernels_for(device: torch.device, *, name: str | None = None) -> Kernels:
    """The fastest set that ``device`` has, or the one asked for by ``name``: eager, cpu, native, cuda.

    Raises InputError for a set that the device cannot run, and BuildError for ``native`` where it cannot
    be compiled.
    """
    from rooflens.runtime.kernels.cpu import CpuKernels
    from rooflens.runtime.kernels.cuda import CudaKernels
    from rooflens.runtime.kernels.eager import EagerKernels

    here: dict[str, Callable[[], Kernels]] = {"eager": EagerKernels}
    if device.type == "cpu":
        here |= {"cpu": CpuKernels, "native": _native}
    if device.type == "cuda":
        here["cuda"] = CudaKernels
    if name is None:
        name = device.type if device.type in here else "eager"
    if name not in here:
        raise InputError(f"no kernels of this name run on {device.type}", value=name, allowed=", ".join(here))
    return here[name]()


def _native() -> Kernels:
    from rooflens.runtime.native.kernels import NativeKernels

    return NativeKernels()
