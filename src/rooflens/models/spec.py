"""ModelSpec: what a model is. The analysis and the runtime are both built from it.

A model is a tuple of layers; a layer is a mixer (attention, or what stands in its place), an MLP and
norms. Every block declares its matrix multiplies (``Linear``) and its other tensors (``Parameter``),
so parameters, bytes, FLOPs and the runtime's modules all come from the same declaration. Names inside
a block are the runtime's attribute names: ``layers.3.attention.qkv_proj`` is one string everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from rooflens.models.blocks import (
    Attention,
    CompressedAttention,
    DenseMlp,
    LatentAttention,
    Linear,
    Mixer,
    MixerKind,
    MixtureOfExperts,
    Mlp,
    Norm,
    Parameter,
    Part,
    Recurrent,
    Rotary,
    Shard,
)
from rooflens.models.formats.base import WeightFormat, plain_format

if TYPE_CHECKING:
    from rooflens.models.stored import StoredWeights

__all__ = [
    "Attention",
    "Component",
    "CompressedAttention",
    "DenseMlp",
    "Embedding",
    "FreeForm",
    "LatentAttention",
    "Layer",
    "LayerGroup",
    "Linear",
    "Mixer",
    "MixerKind",
    "MixtureOfExperts",
    "Mlp",
    "ModelSpec",
    "Norm",
    "Parameter",
    "Part",
    "Recurrent",
    "Rotary",
    "Shard",
    "layer_linears",
    "layer_tensors",
    "mlp_linears",
]


@dataclass(frozen=True)
class Layer:
    """One layer. ``parallel`` feeds mixer and MLP from the same input (GPT-J, NeoX, Cohere).

    A layer may hold two mixers that run side by side (Falcon-H1: attention and Mamba). ``linears``
    and ``parameters`` are what belongs to neither mixer nor MLP (per-layer inputs, hyper-connections).
    """

    mixers: tuple[Mixer, ...]
    mlp: Mlp | None
    norms: tuple[Norm, ...]
    parallel: bool = False
    linears: tuple[Linear, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    residual_scale: float = 1.0
    extra_mlp: Mlp | None = None  # a second feed-forward beside the first (Gemma 4: dense and MoE)


@dataclass(frozen=True)
class LayerGroup:
    """Equal layers and where they stand."""

    layer: Layer
    indices: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many layers are equal to this one."""
        return len(self.indices)


@dataclass(frozen=True)
class Component:
    """A part of the checkpoint outside the text decoder, counted but not run per text token.

    ``kind``: vision, audio, projector, encoder (of an encoder-decoder), mtp (next-token prediction
    layers), pooler, other. Layers for next-token prediction are not part of the model's totals: an
    engine loads them only to speculate.
    """

    name: str
    kind: str
    parameters: int
    weight_bytes: int | None = None  # None: parameters in the model's dtype

    @property
    def in_total(self) -> bool:
        """Whether it counts towards the model's parameters and weight bytes."""
        return self.kind != "mtp"


@dataclass(frozen=True)
class FreeForm:
    """A model known by four numbers only: for back-of-envelope work, no layers named."""

    parameters: int
    active_parameters: int
    kv_bytes_per_token: int
    weights_bytes: int | None = None


@dataclass(frozen=True)
class Embedding:
    """The token table: ``rows`` x ``dim``; a lookup reads one row per token. ``scale`` multiplies it."""

    rows: int
    dim: int
    source: str = "model.embed_tokens"
    scale: float = 1.0
    weight_format: WeightFormat | None = None

    @property
    def parameters(self) -> int:
        """Elements of the table."""
        return self.rows * self.dim


@dataclass(frozen=True, eq=False)
class ModelSpec:
    """A model, exactly: see the module's docstring. All sizes in elements; bytes come from formats.

    Specs are compared by identity (a source is read once), so that results can be cached per spec.
    """

    name: str
    model_type: str
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]
    embedding: Embedding | None
    head: Linear | None  # also present when tied; ``tied`` says whether it owns its weights
    tied: bool = False
    final_norm: Norm | None = None
    dtype: str = "bf16"
    vector_dtype: str | None = None  # norms, biases and other vectors (GGUF: fp32); None: as dtype
    max_context: int | None = None
    norms: tuple[Norm, ...] = ()  # after the embedding (BLOOM)
    linears: tuple[Linear, ...] = ()  # run once per token outside the layers (OPT's project_in)
    parameters_extra: tuple[Parameter, ...] = ()  # position tables and the like
    tables: tuple[Embedding, ...] = ()  # further tables of which a token reads one row (Gemma 3n)
    components: tuple[Component, ...] = ()
    layer_prefix: str = "model.layers.{i}."
    head_scale: float = 1.0
    final_logit_softcap: float | None = None
    generates: bool = True  # False: encoder-only or embedding models
    quantization: str | None = None  # the checkpoint's own method, by name
    kv_scheme: str | None = None  # KV dtype the checkpoint carries scales for (reported, not applied)
    free_form: FreeForm | None = None
    stored: StoredWeights | None = None  # what the files hold, where their headers were read
    notes: tuple[str, ...] = ()
    evidence: dict[str, str] = field(default_factory=dict, hash=False, compare=False)

    @cached_property
    def groups(self) -> tuple[LayerGroup, ...]:
        """Layers that are equal, counted once, in order of first appearance."""
        found: dict[Layer, list[int]] = {}
        for index, layer in enumerate(self.layers):
            found.setdefault(layer, []).append(index)
        return tuple(LayerGroup(layer, tuple(indices)) for layer, indices in found.items())

    @cached_property
    def default_format(self) -> WeightFormat:
        """The format of a matrix that names none."""
        return plain_format(self.dtype)


def mlp_linears(mlp: Mlp | None) -> Iterator[tuple[str, Linear, int]]:
    """(path inside the MLP, linear, how many copies are stored) for every matrix multiply of an MLP."""
    if mlp is None:
        return
    if isinstance(mlp, DenseMlp):
        for linear in mlp.linears:
            yield linear.name, linear, 1
        return
    yield mlp.router.name, mlp.router, 1
    for linear in mlp.linears:
        yield linear.name, linear, 1
    for linear in mlp.expert.linears:
        yield f"experts.{linear.name}", linear, mlp.experts
    if mlp.shared is not None:
        for linear in mlp.shared.linears:
            yield f"shared_expert.{linear.name}", linear, 1
    if mlp.shared_gate is not None:
        yield mlp.shared_gate.name, mlp.shared_gate, 1


def layer_linears(layer: Layer) -> Iterator[tuple[str, Linear, int]]:
    """(path inside the layer, linear, copies) for every matrix multiply of a layer."""
    for mixer in layer.mixers:
        for linear in mixer.linears:
            yield f"{mixer.attribute}.{linear.name}", linear, 1
    for name, mlp in (("mlp", layer.mlp), ("extra_mlp", layer.extra_mlp)):
        for path, linear, copies in mlp_linears(mlp):
            yield f"{name}.{path}", linear, copies
    for linear in layer.linears:
        yield linear.name, linear, 1


def layer_tensors(layer: Layer) -> Iterator[tuple[str, Norm | Parameter, int]]:
    """(path, tensor, copies) for everything in a layer that is not a matrix multiply."""
    for norm in layer.norms:
        yield norm.name, norm, 1
    for parameter in layer.parameters:
        yield parameter.name, parameter, 1
    for mixer in layer.mixers:
        for norm in mixer.norms:
            yield f"{mixer.attribute}.{norm.name}", norm, 1
        for parameter in mixer.parameters:
            yield f"{mixer.attribute}.{parameter.name}", parameter, 1
    for name, mlp in (("mlp", layer.mlp), ("extra_mlp", layer.extra_mlp)):
        if isinstance(mlp, MixtureOfExperts):
            for parameter in mlp.parameters:
                yield f"{name}.{parameter.name}", parameter, 1
            for norm in mlp.expert.norms:
                yield f"{name}.experts.{norm.name}", norm, mlp.experts
        elif mlp is not None:
            for norm in mlp.norms:
                yield f"{name}.{norm.name}", norm, 1
