"""The feed-forward block and the decoder layer."""

from __future__ import annotations

from torch import Tensor, nn

from rooflens.models.spec import Attention as AttentionSpec
from rooflens.models.spec import DenseMlp
from rooflens.models.spec import Layer as LayerSpec
from rooflens.runtime.blocks.attention import Attention
from rooflens.runtime.blocks.basic import Linear, Norm
from rooflens.runtime.blocks.state import StepState
from rooflens.runtime.kernels.base import Kernels


class Activation(nn.Module):
    """act(gate) * up, or act alone."""

    def __init__(self, spec: DenseMlp, kernels: Kernels) -> None:
        super().__init__()
        self.spec = spec
        self.kernels = kernels

    def forward(self, x: Tensor) -> Tensor:
        """[T, rows of the first projection] to [T, intermediate]."""
        return self.kernels.activate(x, activation=self.spec.activation, gated=self.spec.gated)


class Mlp(nn.Module):
    """down(act(first(x))): the first projection is ``gate_up_proj``, or ``up_proj`` without a gate."""

    def __init__(self, spec: DenseMlp, kernels: Kernels) -> None:
        super().__init__()
        first, down = (Linear(linear) for linear in spec.linears)
        self.first_name = first.spec.name
        self.add_module(self.first_name, first)
        self.activation = Activation(spec, kernels)
        self.down_proj = down

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        y: Tensor = self.down_proj(self.activation(getattr(self, self.first_name)(x)))
        return y


class Layer(nn.Module):
    """Attention and feed-forward with their norms: before each block, after it, or both."""

    def __init__(self, spec: LayerSpec, index: int, kernels: Kernels) -> None:
        super().__init__()
        mixer, mlp = spec.mixers[0], spec.mlp
        assert isinstance(mixer, AttentionSpec)
        assert isinstance(mlp, DenseMlp)
        self.parallel = spec.parallel
        self.residual_scale = spec.residual_scale
        self.attention = Attention(mixer, index, kernels)
        self.mlp = Mlp(mlp, kernels)
        norms = {norm.name: Norm(norm, kernels) for norm in spec.norms}
        self.attention_norm = norms.get("attention_norm")
        self.post_attention_norm = norms.get("post_attention_norm")
        self.mlp_norm = norms.get("mlp_norm")
        self.post_mlp_norm = norms.get("post_mlp_norm")

    def _joined(self, residual: Tensor, change: Tensor, post_norm: Norm | None) -> Tensor:
        if post_norm is not None:
            change = post_norm(change)
        if self.residual_scale != 1.0:
            change = change * self.residual_scale
        return residual + change

    def forward(self, x: Tensor, state: StepState) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        inner = x if self.attention_norm is None else self.attention_norm(x)
        mixed = self.attention(inner, state)
        if self.parallel:
            # Both blocks read the same input; one norm serves both where the model has no second.
            forward = self.mlp(inner if self.mlp_norm is None else self.mlp_norm(x))
            both: Tensor = x + mixed + forward
            return both
        x = self._joined(x, mixed, self.post_attention_norm)
        inner = x if self.mlp_norm is None else self.mlp_norm(x)
        return self._joined(x, self.mlp(inner), self.post_mlp_norm)
