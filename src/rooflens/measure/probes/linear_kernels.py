"""Every way torch multiplies matrices here, by the peak it measures: the runtime's own ways first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rooflens.measure.probes.operands import integers, normal
from rooflens.measure.probes.target import Target
from rooflens.measure.timer import TimingError
from rooflens.runtime.kernels.base import Kernels
from rooflens.runtime.kernels.eager import EagerKernels
from rooflens.runtime.kernels.select import kernels_for

Apply = Callable[[Tensor], Tensor]

_TRIAL = (32, 256, 128)  # m, n, k: divisible as every kernel wants, and not square
_CHECKED_ROWS, _CHECKED_COLUMNS = 2, 256
_UINT8_ZERO_POINT = 128


@dataclass(frozen=True)
class LinearKernel:
    """One way to compute y[m, n] = x[m, k] W[n, k]^T.

    ``dtype`` names the peak (fp32, tf32, bf16, ...), ``method`` the operator. ``pack`` turns a weight into
    the function that is timed. ``tolerance`` bounds |y - exact| / |exact| over the checked part.
    """

    dtype: str
    method: str
    weight_bytes: float
    activation_bytes: float
    weight: Callable[[int, int], Tensor]
    inputs: Callable[[int, int], Tensor]
    pack: Callable[[Tensor], Apply]
    tolerance: float
    offset: int = 0  # what stands for zero in the inputs
    setting: Callable[[], AbstractContextManager[None]] = nullcontext

    def check(self, x: Tensor, weight: Tensor, y: Tensor) -> None:
        """Raise TimingError unless ``y`` is the product: work that was left out is not fast."""
        rows, columns = slice(_CHECKED_ROWS), slice(_CHECKED_COLUMNS)
        exact = (x[rows].cpu().double() - self.offset) @ weight[columns].cpu().double().T
        error = (y[rows, columns].cpu().double() - exact).norm() / exact.norm()
        if not error <= self.tolerance:
            raise TimingError(
                f"{self.method} ({self.dtype}) gave a wrong product: relative error {error:.2g}",
                allowed=f"at most {self.tolerance:g}",
            )

    def problem(self) -> str | None:
        """Why it does not work here: tried on a small product, not assumed; None if it does."""
        m, n, k = _TRIAL
        try:
            with self.setting():
                x, weight = self.inputs(m, k), self.weight(n, k)
                self.check(x, weight, self.pack(weight)(x))
        except (RuntimeError, AttributeError, TypeError, NotImplementedError, TimingError) as error:
            return str(error).splitlines()[0] if str(error) else type(error).__name__
        return None


def linear_kernels(target: Target) -> Iterator[LinearKernel]:
    """The kernels to try on a device, by dtype, the most used first."""
    device = target.device
    yield from _floating(device, "bf16", torch.bfloat16, tolerance=1e-2)
    yield from _floating(device, "fp32", torch.float32, tolerance=1e-5, setting=_without_tf32(target))
    yield _int_mm(device)
    if target.is_cpu:
        yield _onednn_int8(device)
    yield from _floating(device, "fp16", torch.float16, tolerance=2e-3)
    yield from _fp8(target)
    if target.kind in ("cuda", "rocm"):
        yield from _floating(device, "tf32", torch.float32, tolerance=2e-3, setting=_with_tf32)
    if target.kind == "cuda":
        yield from _floating(device, "fp16_acc16", torch.float16, tolerance=5e-2, setting=_fp16_accumulation)


def weight_only_int8(target: Target) -> LinearKernel:
    """bf16 inputs and int8 weights, as the runtime holds them: bandwidth only, never a peak."""
    kernels = kernels_for(target.device)
    return LinearKernel(
        dtype="int8 weights",
        method="runtime int8 linear",
        weight_bytes=1,
        activation_bytes=2,
        weight=lambda n, k: normal(n, k, dtype=torch.bfloat16, device=target.device),
        inputs=lambda m, k: normal(m, k, dtype=torch.bfloat16, device=target.device),
        pack=lambda weight: kernels.pack(weight, None, holding="int8").apply,
        tolerance=3e-2,
    )


def _floating(
    device: torch.device,
    name: str,
    dtype: torch.dtype,
    *,
    tolerance: float,
    setting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[LinearKernel]:
    """The runtime's packing, where it differs from ``F.linear``, then ``F.linear`` itself."""
    for kernels in _kernel_sets(device):
        packed = kernels.pack(normal(*_TRIAL[1:], dtype=dtype, device=device), None)
        plain = type(kernels) is EagerKernels
        if not plain and type(packed).__name__ == "PlainLinear":
            continue  # this set has nothing of its own for the type
        yield LinearKernel(
            dtype=name,
            method="F.linear" if plain else packed.holding.partition(", ")[2] or packed.holding,
            weight_bytes=dtype.itemsize,
            activation_bytes=dtype.itemsize,
            weight=lambda n, k: normal(n, k, dtype=dtype, device=device),
            inputs=lambda m, k: normal(m, k, dtype=dtype, device=device),
            pack=lambda weight, kernels=kernels: kernels.pack(weight, None).apply,  # type: ignore[misc]
            tolerance=tolerance,
            setting=setting,
        )


def _kernel_sets(device: torch.device) -> list[Kernels]:
    sets = [kernels_for(device)]
    if device.type == "cpu" and sets[0].name != "cpu":
        sets.append(kernels_for(device, name="cpu"))
    return [each for each in sets if type(each) is not EagerKernels] + [EagerKernels()]


def _int_mm(device: torch.device) -> LinearKernel:
    def pack(weight: Tensor) -> Apply:
        turned = weight.t()
        return lambda x: torch._int_mm(x, turned)

    return LinearKernel(
        dtype="int8",
        method="torch._int_mm",
        weight_bytes=1,
        activation_bytes=1,
        weight=lambda n, k: integers(n, k, device=device),
        inputs=lambda m, k: integers(m, k, device=device),
        pack=pack,
        tolerance=0.0,
    )


def _onednn_int8(device: torch.device) -> LinearKernel:
    """oneDNN's quantised linear with unsigned inputs.

    Signed inputs fall back to a scalar reference on CPUs without AMX: thousands of times slower.
    """
    ops: Any = torch.ops.onednn

    def pack(weight: Tensor) -> Apply:
        n, k = weight.shape
        packed = ops.qlinear_prepack(weight, [1, k])
        scales = torch.ones(n, device=device)
        zeros = torch.zeros(n, dtype=torch.int32, device=device)
        return lambda x: ops.qlinear_pointwise(
            x, 1.0, _UINT8_ZERO_POINT, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )

    return LinearKernel(
        dtype="int8",
        method="onednn.qlinear",
        weight_bytes=1,
        activation_bytes=1,
        weight=lambda n, k: integers(n, k, device=device),
        inputs=lambda m, k: integers(m, k, device=device).view(torch.uint8),
        pack=pack,
        tolerance=1e-5,
        offset=_UINT8_ZERO_POINT,
    )


def _fp8(target: Target) -> Iterator[LinearKernel]:
    """``torch._scaled_mm``; gfx942 (MI300) computes the fnuz variant of e4m3, everything else the OCP one."""
    device = target.device
    dtype = torch.float8_e4m3fn
    if target.kind == "rocm":
        arch = str(getattr(torch.cuda.get_device_properties(device), "gcnArchName", ""))
        dtype = torch.float8_e4m3fnuz if arch.startswith("gfx94") else dtype
    one = torch.ones((), device=device)

    def packer(fast: bool) -> Callable[[Tensor], Apply]:
        def pack(weight: Tensor) -> Apply:
            turned = weight.t()
            return lambda x: torch._scaled_mm(
                x, turned, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast
            )

        return pack

    for fast in (True, False) if target.kind == "cuda" else (False,):
        yield LinearKernel(
            dtype="fp8",
            method="torch._scaled_mm" + (", fast accumulation" if fast else ""),
            weight_bytes=1,
            activation_bytes=1,
            weight=lambda n, k: normal(n, k, dtype=dtype, device=device),
            inputs=lambda m, k: normal(m, k, dtype=dtype, device=device),
            pack=packer(fast),
            tolerance=3e-2 if fast else 1e-2,
        )


def _without_tf32(target: Target) -> Callable[[], AbstractContextManager[None]]:
    if target.kind not in ("cuda", "rocm"):
        return nullcontext
    return lambda: _set(torch.backends.cuda.matmul, "allow_tf32", False)


def _with_tf32() -> AbstractContextManager[None]:
    return _set(torch.backends.cuda.matmul, "allow_tf32", True)


def _fp16_accumulation() -> AbstractContextManager[None]:
    return _set(torch.backends.cuda.matmul, "allow_fp16_accumulation", True)


@contextmanager
def _set(owner: Any, name: str, value: bool) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
