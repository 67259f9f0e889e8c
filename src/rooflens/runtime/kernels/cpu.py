"""The CPU set: weights packed once by oneDNN, attention by tiled multiplies, the rest as the reference.

The packing operators are private to torch and may go: they are tried once, at first use, against
``F.linear``, and left alone if they are missing or disagree; ``describe`` tells. Weights in two bytes that
no cache holds are kept as rows too, where memory allows, for the product of one row that torch compiles.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rooflens.hardware.local_cpu import read_cpu
from rooflens.models.formats.base import WeightFormat, dtype_name, plain_format
from rooflens.models.spec import DenseMlp
from rooflens.runtime.kernels import paged_attention
from rooflens.runtime.kernels.base import AttentionSettings, PackedLinear, WeightHolding
from rooflens.runtime.kernels.compiled import (
    GATED,
    NARROW,
    RMS_NORM,
    ROW_PRODUCTS,
    Compiled,
    Formula,
    compiled,
    streams_of,
)
from rooflens.runtime.kernels.eager import EagerKernels
from rooflens.runtime.native.memory import Pieces

if TYPE_CHECKING:
    from rooflens.runtime.batch import StepBatch
    from rooflens.runtime.kernels.steps import StepRunner
    from rooflens.runtime.kv_cache import PagedKVCache
    from rooflens.runtime.model import DecoderModel

#: Shape of the trial multiply, and how far (relative to the largest value) the packed one may be off.
_TRIAL = (8, 64, 32)
_TRIAL_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


#: Rows up to which a norm's time is that of its calls.
_FEW_ROWS = 16
_EAGER_NORM = "F.layer_norm on few rows, by steps in fp32 on many"
#: Weights are held a second time where the memory holds so many copies of them.
_COPIED_SHARE = 4


class OneDnnLinear(PackedLinear):
    """A weight in oneDNN's blocked layout, opaque to everyone else."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self.bias = bias
        self._format = plain_format(dtype_name(str(weight.dtype)))
        self.holding = f"{str(weight.dtype).removeprefix('torch.')}, packed by oneDNN"
        self.nbytes = weight.nbytes + (bias.nbytes if bias is not None else 0)

    def apply(self, x: Tensor) -> Tensor:
        """See ``PackedLinear.apply``."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return y

    def formats(self) -> tuple[tuple[int, WeightFormat], ...]:
        """See ``PackedLinear.formats``."""
        return ((self.out_features, self._format),)


class OneDnnLinearWithRows(OneDnnLinear):
    """The same beside its rows as they were, which ``product`` multiplies by one row."""

    gives_rows = True

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: Tensor, product: Compiled) -> None:
        """``rows``: a copy of ``weight``."""
        super().__init__(weight, bias)
        self.weight, self._product = rows, product
        self._row_bias = weight.new_zeros(self.out_features) if bias is None else bias
        self.holding += " and as rows"
        self.copied_bytes = weight.nbytes
        self.nbytes += weight.nbytes

    def apply(self, x: Tensor) -> Tensor:
        """See ``PackedLinear.apply``."""
        if len(x) != 1:
            return super().apply(x)
        return self._product(x.contiguous(), self.weight, self._row_bias)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """See ``PackedLinear.rows``."""
        return F.embedding(ids, self.weight).to(dtype)


@lru_cache
def onednn_packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs weights of ``dtype`` here and multiplies them right: tried, not assumed."""
    if dtype not in _TRIAL_TOLERANCE or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    rows, out_features, in_features = _TRIAL
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(out_features, in_features, generator=generator).to(dtype)
    bias = torch.randn(out_features, generator=generator).to(dtype)
    x = torch.randn(rows, in_features, generator=generator).to(dtype)
    try:
        packed = OneDnnLinear(weight, bias).apply(x).float()
    except (RuntimeError, AttributeError, TypeError):
        return False
    plain = F.linear(x.float(), weight.float(), bias.float())
    return bool((packed - plain).abs().max() <= _TRIAL_TOLERANCE[dtype] * plain.abs().max())


@lru_cache
def _eps(eps: float) -> Tensor:
    return torch.tensor(eps, dtype=torch.float32)


@lru_cache
def has_matrix_tiles() -> bool:
    """Whether the processor multiplies bf16 in tiles (AMX), which torch's fused attention then uses."""
    asked = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(asked is not None and asked())


class CpuKernels(EagerKernels):
    """oneDNN-packed linears and tiled attention."""

    name = "cpu"

    def __init__(self, *, not_native: str | None = None) -> None:
        """``not_native``: why the C kernels are not used instead, for ``describe``."""
        self._packing: dict[str, str] = {}
        self._not_native = not_native
        self._pieces = Pieces()
        self._compiles = self._copies = False
        self._not_compiled: dict[str, None] = {}
        self._steps = "module by module"

    def expect(self, model_bytes: int) -> None:
        """See ``Kernels.expect``: a model that a cache holds waits for calls, not for memory."""
        cpu = read_cpu()
        self._compiles = model_bytes > max((size for _, size in cpu.caches), default=0)
        self._copies = model_bytes * _COPIED_SHARE <= (cpu.usable_memory_bytes or 0)

    def _compiled(self, formula: Formula, x: Tensor) -> Compiled | None:
        """``formula`` for operands like ``x``, where it pays and torch can."""
        if not self._compiles or x.dtype not in NARROW or x.device.type != "cpu":
            return None
        made = compiled(formula, x.dtype)
        if isinstance(made, str):
            self._not_compiled[made] = None
            return None
        return made

    def pack(self, weight: Tensor, bias: Tensor | None, *, holding: WeightHolding = "plain") -> PackedLinear:
        """See ``Kernels.pack``."""
        if holding == "plain" and onednn_packs(weight.dtype):
            formula = ROW_PRODUCTS[streams_of(weight)]
            product = self._compiled(formula, weight) if self._copies else None
            if product is None:
                packed: PackedLinear = OneDnnLinear(weight, bias)
            else:
                rows = self._pieces.take(weight.nbytes).view(weight.dtype).view(weight.shape)
                packed = OneDnnLinearWithRows(weight, bias, rows.copy_(weight), product)
        else:
            packed = super().pack(weight, bias, holding=holding)
        self._packing[packed.holding] = type(packed).__name__
        return packed

    def norm(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        *,
        kind: Literal["rms", "layer"],
        eps: float,
    ) -> Tensor:
        """See ``Kernels.norm``; ``F.rms_norm`` is a dozen operators on CPUs, these are fewer."""
        if kind != "rms" or x.dtype not in NARROW or (weight is not None and weight.dtype != x.dtype):
            return super().norm(x, weight, bias, kind=kind, eps=eps)
        if weight is not None and bias is None and (compiled_norm := self._compiled(RMS_NORM, x)) is not None:
            rows = x.reshape(-1, x.shape[-1]).contiguous()
            return compiled_norm(rows, weight, _eps(eps)).view(x.shape)
        if x.shape[:-1].numel() <= _FEW_ROWS:
            # Beside its negative a row has the mean 0 and its own mean square as variance.
            both = torch.cat((x, -x), dim=-1)
            result = F.layer_norm(both, both.shape[-1:], None, None, eps)[..., : x.shape[-1]]
            result = result.clone() if weight is None else result * weight
        else:
            wide = x.float()
            length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
            wide *= length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
            result = (wide if weight is None else wide.mul_(weight)).to(x.dtype)
        return result if bias is None else result + bias

    def steps(self, model: DecoderModel, cache: PagedKVCache) -> StepRunner | None:
        """See ``Kernels.steps``: one token at a time, by layers that torch compiles."""
        from rooflens.runtime.layer_steps import CompiledLayers

        # Whatever the first steps need, before somebody takes their time.
        activations = {layer.mlp.activation for layer in model.spec.layers if isinstance(layer.mlp, DenseMlp)}
        for formula in (RMS_NORM, *(GATED[name] for name in sorted(activations & GATED.keys()))):
            self._compiled(formula, torch.empty(0, dtype=model.dtype))
        made = CompiledLayers.of(model, cache)
        if isinstance(made, str):
            self._steps = f"module by module: {made}"
            return None
        self._steps = "one token at a time by layers that torch compiles, else module by module"
        return made

    def activate(self, x: Tensor, *, activation: str, gated: bool) -> Tensor:
        """See ``Kernels.activate``."""
        formula = GATED.get(activation) if gated else None
        call = None if formula is None else self._compiled(formula, x)
        if call is None:
            return super().activate(x, activation=activation, gated=gated)
        return call(x.contiguous())

    def attend(
        self, query: Tensor, cache: PagedKVCache, layer: int, batch: StepBatch, settings: AttentionSettings
    ) -> Tensor:
        """See ``Kernels.attend``."""
        fused = query.dtype == torch.bfloat16 and settings.softcap is None and has_matrix_tiles()
        return paged_attention.attend(
            query, cache, layer, batch, settings, prefill=paged_attention.fused_prefill if fused else None
        )

    def describe(self) -> dict[str, str]:
        """See ``Kernels.describe``."""
        prefill = f"multiplies over tiles of about {paged_attention.TILE_ROWS} rows"
        if has_matrix_tiles():
            prefill = f"scaled_dot_product_attention in bf16, else {prefill}"
        told = {
            "linear": "; ".join((*sorted(self._packing), *self._not_compiled)) or "nothing packed yet",
            "step": self._steps,
            "attention": f"prefill by {prefill}, decode by scaled_dot_product_attention with folded heads",
            "norm": "compiled by torch" if self._compiles and not self._not_compiled else _EAGER_NORM,
        }
        return told if self._not_native is None else {**told, "native": f"not used: {self._not_native}"}
