"""Which kernel set a device gets."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rooflens.errors import InputError
from rooflens.runtime.kernels.base import Kernels


def kernels_for(device: torch.device, *, name: str | None = None) -> Kernels:
    """The fastest set that ``device`` has, or the one asked for by ``name``: eager, cpu, native, cuda.

    On a CPU that is ``native``, with fp32 weights left to oneDNN where its prompts are faster; ``cpu`` where
    the C kernels cannot be had, and then ``describe`` says why. Raises InputError for a set that the device
    cannot run, and BuildError for ``native`` by name where it cannot be compiled.
    """
    from rooflens.runtime.kernels.cpu import CpuKernels
    from rooflens.runtime.kernels.cuda import CudaKernels
    from rooflens.runtime.kernels.eager import EagerKernels

    here: dict[str, Callable[[], Kernels]] = {"eager": EagerKernels}
    if device.type == "cpu":
        here |= {"cpu": CpuKernels, "native": _native}
    if device.type == "cuda":
        here["cuda"] = CudaKernels
    if name is None and device.type == "cpu":
        return _fastest_on_cpu()
    if name is None:
        name = device.type if device.type in here else "eager"
    if name not in here:
        raise InputError(f"no kernels of this name run on {device.type}", value=name, allowed=", ".join(here))
    return here[name]()


def _native(*, fp32: bool | None = True) -> Kernels:
    from rooflens.runtime.native.kernels import NativeKernels

    return NativeKernels(fp32=fp32)


def _fastest_on_cpu() -> Kernels:
    from rooflens.runtime.kernels.cpu import CpuKernels
    from rooflens.runtime.native.build import BuildError

    try:
        return _native(fp32=None)
    except BuildError as error:
        return CpuKernels(not_native=error.sentence())
