"""The reference kernels: plain torch, every formula as written, no packing and no shortcuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rooflens.errors import UnsupportedError
from rooflens.models.formats.base import WeightFormat, dtype_name, plain_format
from rooflens.runtime.kernels.base import AttentionSettings, Kernels, PackedLinear, WeightHolding
from rooflens.runtime.kernels.quantized import pack_quantized

if TYPE_CHECKING:
    from rooflens.runtime.batch import StepBatch
    from rooflens.runtime.kv_cache import PagedKVCache

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


class PlainLinear(PackedLinear):
    """The weight as it is, multiplied by ``F.linear``."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight = weight
        self.bias = bias
        self.holding = str(weight.dtype).removeprefix("torch.")
        self.nbytes = weight.nbytes + (bias.nbytes if bias is not None else 0)

    def apply(self, x: Tensor) -> Tensor:
        """See ``PackedLinear.apply``."""
        return F.linear(x, self.weight, self.bias)

    def formats(self) -> tuple[tuple[int, WeightFormat], ...]:
        """See ``PackedLinear.formats``."""
        return ((self.out_features, plain_format(dtype_name(str(self.weight.dtype)))),)


class EagerKernels(Kernels):
    """Plain torch on any device."""

    name = "eager"

    def pack(self, weight: Tensor, bias: Tensor | None, *, holding: WeightHolding = "plain") -> PackedLinear:
        """See ``Kernels.pack``."""
        if holding != "plain":
            return pack_quantized(weight, bias, holding=holding)
        return PlainLinear(weight.contiguous(), bias)

    def norm(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        *,
        kind: Literal["rms", "layer"],
        eps: float,
    ) -> Tensor:
        """See ``Kernels.norm``."""
        wide = x if weight is None or weight.dtype == x.dtype else x.to(weight.dtype)
        if kind == "rms":
            result = F.rms_norm(wide, (x.shape[-1],), weight, eps)
            if bias is not None:
                result = result + bias
        else:
            result = F.layer_norm(wide, (x.shape[-1],), weight, bias, eps)
        return result.to(x.dtype)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
        """See ``Kernels.rotate``; ``sin`` carries the sign of the half it multiplies."""
        dim = cos.shape[-1]
        turned = x[..., :dim]
        if interleaved:
            swapped = turned.reshape(*x.shape[:2], dim // 2, 2).flip(-1).flatten(-2)
        else:
            swapped = torch.roll(turned, dim // 2, dims=-1)
        turned = torch.addcmul(turned * cos, swapped, sin)
        return turned if dim == x.shape[-1] else torch.cat((turned, x[..., dim:]), dim=-1)

    def activate(self, x: Tensor, *, activation: str, gated: bool) -> Tensor:
        """See ``Kernels.activate``."""
        if activation not in ACTIVATIONS:
            raise UnsupportedError(
                f"the activation '{activation}' has no kernel", allowed=", ".join(ACTIVATIONS)
            )
        act = ACTIVATIONS[activation]
        if not gated:
            return act(x)
        gate, up = x.chunk(2, dim=-1)
        return act(gate).mul_(up)

    def attend(
        self, query: Tensor, cache: PagedKVCache, layer: int, batch: StepBatch, settings: AttentionSettings
    ) -> Tensor:
        """See ``Kernels.attend``. Softmax in fp32 over every visible token, one sequence after the other."""
        outputs = []
        for index, start in enumerate(batch.query_starts):
            count, length = batch.query_lengths[index], batch.sequence_lengths[index]
            blocks = -(-length // batch.block_tokens)
            key, value = cache.read_blocks(layer, batch.block_tables[index, :blocks])
            rows = query[start : start + count].reshape(count, settings.kv_heads, settings.group, -1)
            scores = torch.einsum("tkgd,ksd->kgts", rows.float(), key[:, :length].float()) * settings.scale
            if settings.softcap is not None:
                scores = settings.softcap * torch.tanh(scores / settings.softcap)
            last = torch.arange(length - count, length, device=query.device)[:, None]
            position = torch.arange(length, device=query.device)[None, :]
            hidden = position > last
            if settings.window is not None:
                hidden |= position <= last - settings.window
            weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
            mixed = torch.einsum("kgts,ksd->tkgd", weights, value[:, :length].float())
            outputs.append(mixed.flatten(1).to(query.dtype))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def describe(self) -> dict[str, str]:
        """See ``Kernels.describe``."""
        return {
            "linear": "F.linear",
            "attention": "fp32 softmax, one sequence at a time",
            "norm": "F.rms_norm",
        }
