"""A model's decode step as a list of C operators, each under the name of the module that it stands for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rooflens.models.spec import Rotary
from rooflens.runtime.blocks.attention import Attention
from rooflens.runtime.blocks.basic import Linear, Norm
from rooflens.runtime.blocks.layer import Layer, Mlp
from rooflens.runtime.blocks.rotary import inverse_frequencies
from rooflens.runtime.kv_cache import PagedKVCache
from rooflens.runtime.model import DecoderModel
from rooflens.runtime.native import layout
from rooflens.runtime.native.layout import Kind
from rooflens.runtime.native.linear import X_TYPES as TABLE_TYPES
from rooflens.runtime.native.linear import NativeLinear, padded


class NotInC(Exception):
    """Why a model's steps are not run by C."""


@dataclass
class Buffers:
    """Rows of floats that operators hand to each other, by name."""

    rows: int
    samples: int
    names: list[str] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    private: list[bool] = field(default_factory=list)

    def get(self, name: str, features: int, *, private: bool = False, sampled: bool = False) -> int:
        """The number of the buffer ``name``, at least so wide. Its padding stays zero.

        ``sampled``: it has room for the rows to sample alone.
        """
        if name not in self.names:
            self.names.append(name)
            self.tensors.append(torch.zeros(self.samples if sampled else self.rows, padded(features)))
            self.private.append(private)
        index = self.names.index(name)
        assert self.tensors[index].shape[1] >= features
        return index

    def c(self) -> ctypes.Array[layout.Buffer]:
        """As C reads them."""
        made = (layout.Buffer * len(self.tensors))()
        for index, tensor in enumerate(self.tensors):
            made[index] = layout.Buffer(tensor.data_ptr(), tensor.shape[1], int(self.private[index]), 0)
        return made


@dataclass
class Program:
    """Operators in order, their modules' paths beside them, and everything that they point to."""

    ops: list[layout.Op] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    classes: list[tuple[int, int, int]] = field(default_factory=list)
    rotations: list[Rotary] = field(default_factory=list)
    kept: list[object] = field(default_factory=list)
    max_features: int = layout.GROUP
    max_partial: int = 0
    rotary_dim: int = 2


def build(model: DecoderModel, cache: PagedKVCache, buffers: Buffers) -> Program:
    """The program of ``model`` over ``cache``. Raises NotInC naming the first thing that C does not do."""
    return _Builder(model, cache, buffers).build()


class _Builder:
    def __init__(self, model: DecoderModel, cache: PagedKVCache, buffers: Buffers) -> None:
        self.model, self.cache, self.buffers = model, cache, buffers
        self.program = Program()

    def build(self) -> Program:
        model, spec = self.model, self.model.spec
        if self.cache.block_tokens != layout.BLOCK_TOKENS:
            raise NotInC(f"blocks of {self.cache.block_tokens} tokens")
        if self.cache.dtype not in layout.KV_TYPES:
            raise NotInC(f"a KV cache in {self.cache.dtype}")
        hidden = self.buffers.get("hidden", spec.hidden_size)
        self._embed(hidden)
        for index, layer in enumerate(model.layers):
            assert isinstance(layer, Layer)
            self._layer(layer, f"layers.{index}", hidden)
        final = self.buffers.get("final", spec.hidden_size, private=True)
        self._norm(model.final_norm, "final_norm", hidden, final, sampled=1)
        logits = self.buffers.get("logits", spec.vocab_size, sampled=True)
        cap = spec.final_logit_softcap or 0.0
        self._linear(model.lm_head, "lm_head", final, logits, scale=spec.head_scale, cap=cap, sampled=1)
        return self.program

    def _add(self, kind: Kind, path: str, source: int, target: int, **fields: Any) -> None:
        defaults: dict[str, Any] = {"residual": -1, "scale": 1.0}
        self.program.ops.append(layout.Op(kind=kind, in_=source, out=target, **{**defaults, **fields}))
        self.program.paths.append(path)

    def _keep(self, tensor: Tensor | None) -> int | None:
        """The address of ``tensor`` in fp32, which then stays."""
        if tensor is None:
            return None
        wide = tensor.float().contiguous()
        self.program.kept.append(wide)
        return wide.data_ptr()

    def _embed(self, hidden: int) -> None:
        embedding = self.model.embedding
        scale = torch.tensor(embedding.spec.scale).to(self.model.dtype).item()
        fields: dict[str, Any] = {"size": embedding.spec.dim, "scale": scale}
        shared = embedding.packed
        if isinstance(shared, NativeLinear):
            fields["linear"] = ctypes.pointer(shared.c)
        elif embedding.weight.dtype in TABLE_TYPES and embedding.weight.is_contiguous():
            fields |= {
                "table": embedding.weight.data_ptr(),
                "table_type": TABLE_TYPES[embedding.weight.dtype],
            }
        else:
            raise NotInC(f"a token table in {str(embedding.weight.dtype).removeprefix('torch.')}")
        self._add(Kind.EMBED, "embedding", hidden, hidden, **fields)

    def _layer(self, layer: Layer, path: str, hidden: int) -> None:
        size = self.model.spec.hidden_size
        inner = self._normed(layer.attention_norm, f"{path}.attention_norm", hidden, "inner", size)
        if layer.parallel:
            # Both blocks read the layer's input, so both norms come before anything is added to it.
            second = inner
            if layer.mlp_norm is not None:
                second = self._normed(layer.mlp_norm, f"{path}.mlp_norm", hidden, "second", size)
            if second == hidden:
                raise NotInC("parallel blocks without a norm")
            self._attention(layer.attention, f"{path}.attention", inner, hidden, None, "", 1.0)
            self._mlp(layer.mlp, f"{path}.mlp", second, hidden, None, "", 1.0)
            return
        scale = layer.residual_scale
        self._attention(
            layer.attention, f"{path}.attention", inner, hidden, layer.post_attention_norm,
            f"{path}.post_attention_norm", scale,
        )  # fmt: skip
        inner = self._normed(layer.mlp_norm, f"{path}.mlp_norm", hidden, "inner", size)
        self._mlp(
            layer.mlp, f"{path}.mlp", inner, hidden, layer.post_mlp_norm, f"{path}.post_mlp_norm", scale
        )

    def _normed(self, norm: Norm | None, path: str, source: int, name: str, size: int) -> int:
        if norm is None:
            return source
        target = self.buffers.get(name, size, private=True)
        self._norm(norm, path, source, target)
        return target

    def _norm(self, norm: Norm, path: str, source: int, target: int, **fields: Any) -> None:
        self._add(
            Kind.NORM, path, source, target, size=norm.spec.size, weight=self._keep(norm.weight),
            bias=self._keep(norm.bias), eps=norm.spec.eps, layer_norm=int(norm.spec.kind == "layer"),
            **fields,
        )  # fmt: skip

    def _linear(self, module: Linear, path: str, source: int, target: int, **fields: Any) -> None:
        packed = module.packed
        if not isinstance(packed, NativeLinear):
            raise NotInC(f"{path} is held as {packed.holding}")
        self.program.max_features = max(self.program.max_features, padded(packed.in_features))
        self._add(Kind.LINEAR, path, source, target, linear=ctypes.pointer(packed.c), **fields)

    def _output(
        self,
        module: Linear,
        path: str,
        source: int,
        hidden: int,
        post: Norm | None,
        post_path: str,
        scale: float,
    ) -> None:
        """A block's last linear, and what brings its result into the residual stream."""
        if post is None:
            self._linear(module, path, source, hidden, residual=hidden, scale=scale)
            return
        change = self.buffers.get("change", self.model.spec.hidden_size)
        self._linear(module, path, source, change)
        self._norm(post, post_path, change, hidden, residual=hidden, scale=scale)

    def _mlp(
        self, mlp: Mlp, path: str, inner: int, hidden: int, post: Norm | None, post_path: str, scale: float
    ) -> None:
        first: Linear = getattr(mlp, mlp.first_name)
        spec = mlp.activation.spec
        size = mlp.down_proj.spec.in_features
        if spec.activation not in layout.ACTIVATIONS:
            raise NotInC(f"the activation {spec.activation}")
        rows = self.buffers.get("first", self._widest("first"))
        self._linear(first, f"{path}.{mlp.first_name}", inner, rows)
        active = self.buffers.get("active", self._widest("active"))
        self._add(
            Kind.ACTIVATE, f"{path}.activation", rows, active, size=size,
            activation=layout.ACTIVATIONS[spec.activation], gated=int(spec.gated),
        )  # fmt: skip
        self._output(mlp.down_proj, f"{path}.down_proj", active, hidden, post, post_path, scale)

    def _widest(self, name: str) -> int:
        """Features of the widest layer's buffer ``name``."""
        choose: dict[str, Callable[[Any], int]] = {
            "first": lambda layer: getattr(layer.mlp, layer.mlp.first_name).spec.out_features,
            "active": lambda layer: layer.mlp.down_proj.spec.in_features,
            "qkv": lambda layer: layer.attention.qkv_proj.spec.out_features,
            "mixed": lambda layer: layer.attention.o_proj.spec.in_features,
        }
        return max(choose[name](layer) for layer in self.model.layers)

    def _attention(
        self,
        attention: Attention,
        path: str,
        inner: int,
        hidden: int,
        post: Norm | None,
        post_path: str,
        scale: float,
    ) -> None:
        core, spec = attention.core, attention.spec
        settings = core.settings
        if settings.head_dim > layout.MAX_HEAD or settings.group > layout.MAX_GROUP:
            raise NotInC(f"heads of {settings.head_dim} features, {settings.group} for one KV head")
        width = -(-settings.head_dim // layout.HEAD_FEATURES) * layout.HEAD_FEATURES
        self.program.max_partial = max(self.program.max_partial, settings.group * (width + 2))
        qkv = self.buffers.get("qkv", self._widest("qkv"))
        mixed = self.buffers.get("mixed", self._widest("mixed"))
        self._linear(attention.qkv_proj, f"{path}.qkv_proj", inner, qkv)
        heads: dict[str, Any] = {
            "heads": settings.heads, "kv_heads": settings.kv_heads, "head_dim": settings.head_dim,
        }  # fmt: skip
        for norm, name, first, count in (
            (attention.q_norm, "q_norm", 0, settings.heads),
            (attention.k_norm, "k_norm", settings.heads, settings.kv_heads),
        ):
            if norm is not None:
                self._add(
                    Kind.HEAD_NORM, f"{path}.{name}", qkv, qkv, size=norm.spec.size,
                    weight=self._keep(norm.weight), bias=self._keep(norm.bias), eps=norm.spec.eps,
                    layer_norm=int(norm.spec.kind == "layer"), first_head=first, heads=count,
                    head_dim=settings.head_dim, all_heads=settings.heads + 2 * settings.kv_heads,
                )  # fmt: skip
        rotation: dict[str, Any] = {}
        if spec.rotary is not None:
            rotation = {
                "rotation": self._rotation(spec.rotary, f"{path}.core"),
                "rotary_dim": spec.rotary.dim,
                "interleaved": int(spec.rotary.interleaved),
            }
        cache = self._cache_fields(core.layer)
        self._add(Kind.STORE, f"{path}.core", qkv, qkv, **heads, **rotation, **cache)
        plan = (settings.window or 0, settings.kv_heads, settings.group)
        if plan not in self.program.classes:
            self.program.classes.append(plan)
        self._add(
            Kind.ATTEND, f"{path}.core", qkv, mixed, plan=self.program.classes.index(plan),
            softmax_scale=settings.scale, softcap=settings.softcap or 0.0, **heads, **cache,
        )  # fmt: skip
        self._output(attention.o_proj, f"{path}.o_proj", mixed, hidden, post, post_path, scale)

    def _cache_fields(self, index: int) -> dict[str, Any]:
        cache = self.cache
        scales = cache.scales(index)
        return {
            "keys": cache.keys[index].data_ptr(),
            "values": cache.values[index].data_ptr(),
            "key_scales": None if scales is None else scales[0].data_ptr(),
            "value_scales": None if scales is None else scales[1].data_ptr(),
            "kv_type": layout.KV_TYPES[cache.dtype],
        }

    def _rotation(self, rotary: Rotary, path: str) -> int:
        """The number of the table of angles, which the first layer that needs it fills."""
        program = self.program
        if rotary not in program.rotations:
            frequencies, factor = inverse_frequencies(
                rotary, context=self.model.context, limit=self.model.spec.max_context
            )
            program.rotations.append(rotary)
            program.rotary_dim = max(program.rotary_dim, rotary.dim)
            self._add(
                Kind.ROTATION, path, 0, 0, rotation=len(program.rotations) - 1, rotary_dim=rotary.dim,
                frequencies=self._keep(frequencies), rotation_factor=factor,
            )  # fmt: skip
        return program.rotations.index(rotary)
