"""A ModelSpec, run: the plainest forward pass that uses nothing but the spec and the checkpoint's tensors.

It is the definition of what the spec's fields mean, checked against transformers. Dense decoders only; one
sequence, no cache, float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rooflens.models.spec import Attention, DenseMlp, Layer, Linear, ModelSpec, Norm, Rotary

ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x) ** 2,
}


class Interpreter:
    """Runs ``spec`` on the tensors of its checkpoint."""

    def __init__(self, spec: ModelSpec, tensors: Mapping[str, Tensor]) -> None:
        self.spec = spec
        self.tensors = tensors

    def logits(self, tokens: Tensor) -> Tensor:
        """[tokens] -> [tokens, vocabulary]."""
        spec = self.spec
        assert spec.embedding is not None
        outer = {linear.name: linear for linear in spec.linears}
        table = self.tensors[f"{spec.embedding.source}.weight"]
        x = table[tokens] * spec.embedding.scale
        if "project_in" in outer:
            x = self.linear(outer["project_in"], x)
        for parameter in spec.parameters_extra:
            assert parameter.name == "position_embedding"
            rows = self.tensors[parameter.source]
            assert spec.max_context is not None
            first = len(rows) - spec.max_context
            x = x + rows[first : first + len(tokens)]
        for norm in spec.norms:
            x = self.norm(norm, x)
        for index, layer in enumerate(spec.layers):
            x = self.layer(layer, x, spec.layer_prefix.replace("{i}", str(index)))
        if spec.final_norm is not None:
            x = self.norm(spec.final_norm, x)
        if "project_out" in outer:
            x = self.linear(outer["project_out"], x)
        assert spec.head is not None
        weight = table if spec.tied else self.tensors[f"{spec.head.parts[0].source}.weight"]
        out = x @ weight.T
        if spec.head.bias:
            out = out + self.tensors[f"{spec.head.parts[0].source}.bias"]
        out = out * spec.head_scale
        cap = spec.final_logit_softcap
        return out if cap is None else cap * torch.tanh(out / cap)

    def layer(self, layer: Layer, x: Tensor, prefix: str) -> Tensor:
        norms = {norm.name: norm for norm in layer.norms}

        def normed(name: str, x: Tensor) -> Tensor:
            return self.norm(norms[name], x, prefix) if name in norms else x

        (mixer,) = layer.mixers
        mlp = layer.mlp
        assert isinstance(mixer, Attention)
        assert isinstance(mlp, DenseMlp)
        scale = layer.residual_scale
        first = normed("attention_norm", x)
        mixed = normed("post_attention_norm", self.attention(mixer, first, prefix))
        if layer.parallel:
            second = normed("mlp_norm", x) if "mlp_norm" in norms else first
            return x + scale * (mixed + self.mlp(mlp, second, prefix))
        x = normed("attention_residual_norm", x + scale * mixed)
        fed = normed("post_mlp_norm", self.mlp(mlp, normed("mlp_norm", x), prefix))
        return normed("mlp_residual_norm", x + scale * fed)

    def linear(self, linear: Linear, x: Tensor, prefix: str = "") -> Tensor:
        return torch.cat(list(self.parts(linear, x, prefix)), dim=-1)

    def parts(self, linear: Linear, x: Tensor, prefix: str) -> list[Tensor]:
        outs = []
        for part in linear.parts:
            weight = self.tensors[f"{prefix}{part.source}.weight"]
            out = x @ (weight if linear.transposed else weight.T)
            if linear.bias:
                out = out + self.tensors[f"{prefix}{part.source}.bias"]
            outs.append(out)
        return outs

    def norm(self, norm: Norm, x: Tensor, prefix: str = "") -> Tensor:
        """Over the last dimension; for norms of one weight per head x is [tokens, heads, head_dim]."""
        if norm.kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps)
        if norm.affine:
            x = x * (self.vector(norm, "weight", prefix) + norm.offset)
        if norm.bias:
            x = x + self.vector(norm, "bias", prefix)
        return x

    def vector(self, norm: Norm, kind: str, prefix: str) -> Tensor:
        if "{h}" not in norm.source:
            return self.tensors[f"{prefix}{norm.source}.{kind}"]
        names = [norm.source.replace("{h}", str(head)) for head in range(norm.groups)]
        return torch.stack([self.tensors[f"{prefix}{name}.{kind}"] for name in names])

    def mlp(self, mlp: DenseMlp, x: Tensor, prefix: str) -> Tensor:
        up, down = mlp.linears
        inner = self.linear(up, x, prefix)
        act = ACTIVATIONS[mlp.activation]
        if mlp.gated:
            gate, value = inner.chunk(2, dim=-1)
            inner = act(gate) * value
        else:
            inner = act(inner)
        for norm in mlp.norms:
            inner = self.norm(norm, inner, prefix)
        return self.linear(down, inner, prefix)

    def heads(self, mixer: Attention, x: Tensor, prefix: str) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v as [tokens, heads, head_dim], from any layout of the rows."""
        rows = self.linear(mixer.linears[0], x, prefix)
        tokens, size = len(x), mixer.head_dim
        layout = mixer.linears[0].parts[0].layout
        if layout == "grouped":
            group = mixer.heads // mixer.kv_heads
            grouped = rows.view(tokens, mixer.kv_heads, group + 2, size)
            q = grouped[:, :, :group].reshape(tokens, mixer.heads, size)
            return q, grouped[:, :, group], grouped[:, :, group + 1]
        if layout == "codegen":
            blocks = rows.view(tokens, 4, 3, mixer.heads // 4, size)
            q, v, k = (blocks[:, :, index].reshape(tokens, mixer.heads, size) for index in range(3))
            return q, k, v
        counts = (mixer.heads, mixer.kv_heads, mixer.kv_heads)
        q, k, v = torch.split(rows, [count * size for count in counts], dim=-1)
        return (
            q.view(tokens, mixer.heads, size),
            k.view(tokens, mixer.kv_heads, size),
            v.view(tokens, mixer.kv_heads, size),
        )

    def head_norm(self, mixer: Attention, name: str, x: Tensor, prefix: str) -> Tensor:
        for norm in mixer.norms:
            if norm.name == name:
                whole = norm.groups == 1 and norm.size != mixer.head_dim
                shaped = x.flatten(1) if whole else x
                return self.norm(norm, shaped, prefix).view(x.shape)
        return x

    def attention(self, mixer: Attention, x: Tensor, prefix: str) -> Tensor:
        q, k, v = self.heads(mixer, x, prefix)
        if mixer.qkv_clip is not None:
            q, k, v = (part.clamp(-mixer.qkv_clip, mixer.qkv_clip) for part in (q, k, v))
        for last in (False, True):
            if mixer.norm_after_rotary == last:
                q = self.head_norm(mixer, "q_norm", q, prefix)
                k = self.head_norm(mixer, "k_norm", k, prefix)
            elif mixer.rotary is not None:
                q, k = rotated(mixer.rotary, q), rotated(mixer.rotary, k)
        group = mixer.heads // mixer.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scale = mixer.head_dim**-0.5 if mixer.scale is None else mixer.scale
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        if mixer.logit_softcap is not None:
            scores = mixer.logit_softcap * torch.tanh(scores / mixer.logit_softcap)
        distance = torch.arange(len(x))[:, None] - torch.arange(len(x))[None, :]
        if mixer.alibi:
            scores = scores - alibi_slopes(mixer.heads)[:, None, None] * distance
        hidden = distance < 0
        if mixer.window is not None:
            hidden = hidden | (distance >= mixer.window)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        out = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
        for norm in mixer.norms:
            if norm.name == "o_proj_norm":
                out = self.norm(norm, out, prefix)
        return self.linear(mixer.linears[1], out, prefix)


def rotated(rotary: Rotary, x: Tensor) -> Tensor:
    """[tokens, heads, head_dim] with its first ``dim`` features turned by their positions."""
    scaling = dict(rotary.scaling)
    assert scaling.get("rope_type", "linear") == "linear"
    steps = torch.arange(0, rotary.dim, 2) / rotary.dim
    angles = torch.arange(len(x))[:, None] / scaling.get("factor", 1.0) * rotary.theta**-steps
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    turning, rest = x[..., : rotary.dim], x[..., rotary.dim :]
    if rotary.interleaved:
        a, b = turning[..., ::2], turning[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = turning.chunk(2, dim=-1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return torch.cat((turned, rest), dim=-1)


def alibi_slopes(heads: int) -> Tensor:
    """One slope per head, as published with ALiBi; heads past a power of two take every other slope."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (index + 1) / power) for index in range(power)]
    slopes += [2.0 ** (-4.0 * (2 * index + 1) / power) for index in range(heads - power)]
    return torch.tensor(slopes)
