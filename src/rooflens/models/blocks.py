"""The blocks that a layer is made of: matrices, norms, mixers and feed-forwards.

Every block declares its matrix multiplies (``Linear``) and its other tensors (``Parameter``, ``Norm``).
Import them from `rooflens.models.spec`, which describes a whole model.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from math import prod
from typing import Any, Literal

from rooflens.models.formats.base import WeightFormat

Shard = Literal["column", "row", "replicated"]


@dataclass(frozen=True)
class Part:
    """A matrix of the checkpoint that is fused (stacked along its rows) into one ``Linear``.

    ``source`` is the checkpoint's module name inside the layer, e.g. ``self_attn.q_proj``; ``{e}`` in
    it stands for the expert's number. ``layout`` is the order of the rows of a q, k, v matrix that the
    checkpoint itself fuses: all of q, then k, then v (``stacked``), the same once per KV group
    (``grouped``: NeoX, BLOOM, Falcon, InternLM2), or CodeGen's four blocks of q, v, k. ``flat`` stacks
    the rows of all experts in one matrix (DBRX).
    """

    source: str
    out_features: int
    weight_format: WeightFormat | None = None  # None: the model's own dtype
    layout: Literal["stacked", "grouped", "codegen", "flat"] = "stacked"


@dataclass(frozen=True)
class Linear:
    """A matrix multiply: y[tokens, out] = x[tokens, in] W^T + b, W made of ``parts``.

    ``shard`` says how tensor parallelism cuts it: by output features, by input features, or not.
    ``transposed`` marks a checkpoint that stores [in, out] (GPT-2's Conv1D), ``bare`` one whose sources
    are complete tensor names, without ``.weight``. ``borrowed`` weights are an earlier layer's: run again,
    stored and counted there (Zamba's shared blocks).
    """

    name: str
    in_features: int
    parts: tuple[Part, ...]
    bias: bool = False
    shard: Shard = "column"
    transposed: bool = False
    bare: bool = False
    borrowed: bool = False

    @property
    def out_features(self) -> int:
        """Rows of the fused matrix."""
        return sum(part.out_features for part in self.parts)

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return 0 if self.borrowed else self.out_features * (self.in_features + int(self.bias))


@dataclass(frozen=True)
class Parameter:
    """A tensor that is not a matrix multiply: norms, sinks, decay rates, convolution kernels.

    A ``buffer`` is stored in the checkpoint and needed to run, but was not trained by gradients and is
    not counted as a parameter (DeepSeek's router correction bias).
    """

    name: str
    shape: tuple[int, ...]
    source: str = ""
    shard: Shard = "replicated"
    dtype: str | None = None  # None: the model's own
    buffer: bool = False

    @property
    def elements(self) -> int:
        """Stored elements."""
        return prod(self.shape)

    @property
    def parameters(self) -> int:
        """Elements that count as parameters."""
        return 0 if self.buffer else self.elements


@dataclass(frozen=True)
class Norm:
    """A normalisation over ``size`` features; ``offset`` is added to the stored weight (Gemma: 1).

    Its place in the layer is its name: ``attention_norm`` and ``mlp_norm`` act on the input of the block,
    ``post_attention_norm`` and ``post_mlp_norm`` on its output before the residual is added,
    ``attention_residual_norm`` and ``mlp_residual_norm`` on the sum after it (OPT 350M). Inside a block
    ``q_norm`` and ``k_norm`` act on heads, ``o_proj_norm`` and ``down_proj_norm`` on that matrix's input
    (BitNet). ``groups`` counts the weight vectors where every head has its own (Cohere, StableLM); each
    group is normalised by itself. ``{h}`` in ``source`` stands for the head's number. ``borrowed`` as for
    a Linear.
    """

    name: str
    size: int
    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    bias: bool = False
    affine: bool = True
    offset: float = 0.0
    source: str = ""
    groups: int = 1
    borrowed: bool = False
    dtype: str | None = None  # None: the model's own

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return 0 if self.borrowed else self.size * self.groups * (int(self.affine) + int(self.bias))


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding on the first ``dim`` features of a head.

    ``scaling`` holds the config's scaling entry as sorted (key, value) pairs, lists as tuples.
    ``interleaved`` pairs neighbours (GPT-J, Cohere) instead of halves (NeoX, Llama).
    """

    dim: int
    theta: float
    scaling: tuple[tuple[str, Any], ...] = ()
    interleaved: bool = False


class MixerKind(Enum):
    """What mixes tokens in a layer, as counted in ``inspect``."""

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    CROSS = "cross"
    MLA = "mla"
    COMPRESSED = "compressed"
    LINEAR = "linear"
    MAMBA = "mamba"
    CONV = "conv"


@dataclass(frozen=True)
class Attention:
    """Softmax attention with a cache of keys and values (MHA, GQA, MQA; full, windowed or cross).

    ``window`` counts the tokens a query sees, itself included; ``chunked`` makes it Llama 4's aligned
    chunks. ``shares_kv`` marks a layer that reads another layer's cache and stores none.
    ``value_is_key`` marks a layer that projects keys only, yet caches both. ``cross_tokens`` is the
    fixed length attended by cross-attention (its cache does not grow with the text).
    """

    heads: int
    kv_heads: int
    head_dim: int
    linears: tuple[Linear, ...]
    v_head_dim: int = 0  # 0: as head_dim
    norms: tuple[Norm, ...] = ()  # q_norm, k_norm
    parameters: tuple[Parameter, ...] = ()
    rotary: Rotary | None = None
    window: int | None = None
    chunked: bool = False
    causal: bool = True
    cached: bool = True  # False: encoder-only, nothing is kept
    shares_kv: bool = False
    value_is_key: bool = False
    cross_tokens: int | None = None
    scale: float | None = None  # None: head_dim ** -0.5
    logit_softcap: float | None = None
    qkv_clip: float | None = None  # q, k and v are clamped to [-clip, clip] (OLMo, MPT, DBRX)
    sinks: bool = False
    alibi: bool = False
    norm_after_rotary: bool = False  # q_norm and k_norm act on rotated heads (Hunyuan)
    indexer_key_dim: int = 0  # sparse attention: cached key features of its indexer
    indexer_heads: int = 0
    indexer_top_k: int = 0  # tokens that a query reads at most, 0: all

    @property
    def attribute(self) -> str:
        """The runtime's attribute: a decoder layer may hold both self- and cross-attention."""
        return "attention" if self.cross_tokens is None else "cross_attention"

    @property
    def kind(self) -> MixerKind:
        """The kind counted in ``inspect``."""
        if self.cross_tokens is not None:
            return MixerKind.CROSS
        if self.window is None:
            return MixerKind.FULL
        return MixerKind.CHUNKED if self.chunked else MixerKind.SLIDING

    @property
    def value_dim(self) -> int:
        """Features of one value head."""
        return self.v_head_dim or self.head_dim

    @property
    def kv_elements_per_token(self) -> int:
        """Elements this layer keeps per cached token; 0 where it stores none."""
        if not self.cached or self.shares_kv:
            return 0
        return self.kv_heads * (self.head_dim + self.value_dim) + self.indexer_key_dim


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one compressed latent and one rotary key per token are kept.

    ``indexer_*`` describe the sparse-attention indexer of DeepSeek-V3.2 kind (0: none): its own key
    is cached too, and a query reads at most ``indexer_top_k`` tokens.
    """

    heads: int
    kv_lora_rank: int
    rope_dim: int
    nope_dim: int
    v_head_dim: int
    linears: tuple[Linear, ...]
    norms: tuple[Norm, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    rotary: Rotary | None = None
    scale: float | None = None
    indexer_heads: int = 0
    indexer_key_dim: int = 0
    indexer_top_k: int = 0
    indexer_cached: bool = True

    attribute = "attention"
    kind = MixerKind.MLA
    window: int | None = None

    @property
    def latent_dim(self) -> int:
        """Elements of one cached latent, its rotary key included."""
        return self.kv_lora_rank + self.rope_dim

    @property
    def kv_elements_per_token(self) -> int:
        """Elements this layer keeps per cached token."""
        return self.latent_dim + (self.indexer_key_dim if self.indexer_cached else 0)


@dataclass(frozen=True)
class CompressedAttention:
    """Attention over the last tokens as they are and over compressed entries of all before (DeepSeek-V4).

    One vector of ``head_dim`` features is both key and value of a token, for all heads. The last
    ``window`` tokens keep theirs; beside them every ``ratio`` tokens leave one compressed entry of the
    same size (0: none). With an indexer (``indexer_*``, 0: none) an entry has an index key too, and a
    query reads at most ``indexer_top_k`` entries. ``state_elements`` in ``state_dtype`` hold the tokens
    that have not filled an entry yet, per sequence.
    """

    heads: int
    head_dim: int
    rope_dim: int
    window: int
    ratio: int
    linears: tuple[Linear, ...]
    norms: tuple[Norm, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    rotary: Rotary | None = None
    scale: float | None = None
    sinks: bool = False
    indexer_heads: int = 0
    indexer_key_dim: int = 0
    indexer_top_k: int = 0
    state_elements: int = 0
    state_dtype: str = "fp32"

    attribute = "attention"
    kind = MixerKind.COMPRESSED

    @property
    def kv_elements_per_token(self) -> int:
        """Elements kept for a token inside the window."""
        return self.head_dim

    @property
    def entry_elements(self) -> int:
        """Elements of one compressed entry, its index key included."""
        return self.head_dim + self.indexer_key_dim if self.ratio else 0

    @property
    def growth_elements_per_token(self) -> Fraction:
        """Elements that one more token adds at long context."""
        return Fraction(self.entry_elements, self.ratio or 1)


@dataclass(frozen=True)
class Recurrent:
    """A layer whose memory of the past has a fixed size: linear attention, Mamba, short convolution.

    ``state_elements`` are kept in ``state_dtype`` (the recurrent matrix), ``conv_elements`` in the
    model's dtype (the convolution's last inputs); both per sequence. ``flops_per_token`` counts the
    recurrence and the convolution, not the projections. ``variant`` names the recurrence
    (gated_delta_net, kda, mamba, mamba2, rg_lru, lightning, rwkv, short_conv); the head counts and
    sizes after it are those of its state, 0 where it has none.
    """

    kind: MixerKind
    attribute: str
    linears: tuple[Linear, ...]
    state_elements: int
    conv_elements: int
    flops_per_token: int
    state_dtype: str = "fp32"
    state_heads: int = 1  # how many ways tensor parallelism may cut the state
    norms: tuple[Norm, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    window: int | None = None
    variant: str = ""
    key_heads: int = 0
    key_dim: int = 0
    value_heads: int = 0
    value_dim: int = 0
    conv_kernel: int = 0

    kv_elements_per_token = 0


Mixer = Attention | LatentAttention | CompressedAttention | Recurrent


@dataclass(frozen=True)
class DenseMlp:
    """A feed-forward block; ``gated`` ones multiply act(gate) with up before the down projection."""

    intermediate_size: int
    linears: tuple[Linear, ...]
    activation: str = "silu"
    gated: bool = True
    norms: tuple[Norm, ...] = ()


@dataclass(frozen=True)
class MixtureOfExperts:
    """``experts`` feed-forward blocks of one shape, ``top_k`` of them used per token, plus shared ones.

    ``expert`` describes one routed expert; ``shared`` stands for all shared experts together and runs
    for every token. The router may also choose among ``zero_experts`` that do nothing (LongCat), so a
    token visits at most ``top_k`` real ones.
    """

    experts: int
    top_k: int
    expert: DenseMlp
    router: Linear
    shared: DenseMlp | None = None
    shared_gate: Linear | None = None
    linears: tuple[Linear, ...] = ()  # run for every token beside the experts (latent projections)
    parameters: tuple[Parameter, ...] = ()
    zero_experts: int = 0


Mlp = DenseMlp | MixtureOfExperts
