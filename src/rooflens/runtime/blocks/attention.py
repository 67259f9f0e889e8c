"""Grouped-query attention: projections, norms of q and k, and the core over the paged cache."""

from __future__ import annotations

from torch import Tensor, nn

from rooflens.models.spec import Attention as AttentionSpec
from rooflens.runtime.blocks.basic import Linear, Norm
from rooflens.runtime.blocks.state import StepState
from rooflens.runtime.kernels.base import AttentionSettings, Kernels


class AttentionCore(nn.Module):
    """Rotary positions, the write into the cache, and the mixing of values."""

    def __init__(self, spec: AttentionSpec, layer: int, kernels: Kernels) -> None:
        super().__init__()
        self.rotary = spec.rotary
        self.layer = layer
        self.kernels = kernels
        self.settings = AttentionSettings(
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            scale=spec.head_dim**-0.5 if spec.scale is None else spec.scale,
            window=spec.window,
            softcap=spec.logit_softcap,
        )

    def forward(self, query_key: Tensor, value: Tensor, state: StepState) -> Tensor:
        """``query_key`` [T, heads + kv_heads, head_dim], ``value`` [T, kv_heads, head_dim]: [T, features]."""
        if self.rotary is not None:
            cos, sin = state.rotation(self.rotary)
            query_key = self.kernels.rotate(query_key, cos, sin, interleaved=self.rotary.interleaved)
        query, key = query_key[:, : self.settings.heads], query_key[:, self.settings.heads :]
        state.cache.write(self.layer, key, value, state.batch.slot_mapping)
        return self.kernels.attend(query, state.cache, self.layer, state.batch, self.settings)


class Attention(nn.Module):
    """One attention block, its modules named as in the spec."""

    def __init__(self, spec: AttentionSpec, layer: int, kernels: Kernels) -> None:
        super().__init__()
        self.spec = spec
        self.rows = spec.heads + spec.kv_heads
        self.qkv_proj, self.o_proj = (Linear(linear) for linear in spec.linears)
        norms = {norm.name: Norm(norm, kernels) for norm in spec.norms}
        self.q_norm, self.k_norm = norms.get("q_norm"), norms.get("k_norm")
        self.core = AttentionCore(spec, layer, kernels)

    def forward(self, x: Tensor, state: StepState) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        heads, kv_heads, head_dim = self.spec.heads, self.spec.kv_heads, self.spec.head_dim
        qkv = self.qkv_proj(x).view(-1, heads + 2 * kv_heads, head_dim)
        query_key, value = qkv[:, : self.rows], qkv[:, self.rows :]
        if self.q_norm is not None and self.k_norm is not None:
            query_key = query_key.new_empty(query_key.shape)
            query_key[:, :heads] = _normed(self.q_norm, qkv[:, :heads])
            query_key[:, heads:] = _normed(self.k_norm, qkv[:, heads : self.rows])
        mixed: Tensor = self.o_proj(self.core(query_key, value, state))
        return mixed


def _normed(norm: Norm, x: Tensor) -> Tensor:
    """``x`` [T, heads, head_dim] normalised over each head or over all heads, by its size."""
    if norm.spec.size == x.shape[-1]:
        result: Tensor = norm(x)
    else:
        result = norm(x.reshape(x.shape[0], -1)).view(x.shape)
    return result
