"""A GGUF recipe on a ModelSpec: which tensor of llama.cpp each matrix becomes, and its type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from rooflens.models.checkpoint.ggml_types import GGML_TYPES_BY_NAME
from rooflens.models.formats.base import WeightFormat, plain_format
from rooflens.models.formats.gguf_recipes import FALLBACK, LAST_FALLBACK, Category, Place, Recipe
from rooflens.models.formats.layouts import ggml
from rooflens.models.formats.rewrite import Matrix, Role, layer_matrices
from rooflens.models.spec import Attention, LatentAttention, MixtureOfExperts, ModelSpec

# The converter splits the fused q, k, v of these families into three tensors.
_SPLIT_BY_CONVERTER = frozenset({"internlm2", "baichuan"})
# Families that llama.cpp calls 70B at 80 layers; a Llama of 80 layers without grouped heads is 65B.
_70B_FAMILIES = frozenset({"llama", "qwen2", "qwen2_vl", "qwen2_5_vl"})
_70B_LAYERS = 80
_QKV = (Category.ATTN_Q, Category.ATTN_K, Category.ATTN_V)


def _mlp_category(linear: str, part: int, parts: int) -> Category:
    if linear == "down_proj":
        return Category.FFN_DOWN
    if linear == "gate_up_proj" and parts == 2:
        return (Category.FFN_GATE, Category.FFN_UP)[part]
    return Category.FFN_GATE if linear == "gate_proj" else Category.FFN_UP


def category(matrix: Matrix) -> Category:
    """The category of a matrix by its place in the model."""
    if matrix.role is Role.HEAD:
        return Category.OUTPUT
    if matrix.role is Role.EMBEDDING:
        return Category.TOKEN_EMBD
    mixer = matrix.mixer
    if matrix.role is Role.OUTSIDE or not (mixer is None or isinstance(mixer, (Attention, LatentAttention))):
        return Category.OTHER
    if mixer is None:
        known = matrix.linear in ("gate_up_proj", "gate_proj", "up_proj", "down_proj")
        return _mlp_category(matrix.linear, matrix.part, matrix.parts) if known else Category.OTHER
    if matrix.linear == "o_proj":
        return Category.ATTN_OUTPUT
    if matrix.linear == "q_proj":
        return Category.ATTN_Q
    if matrix.linear != "qkv_proj":
        return Category.OTHER
    if matrix.parts == 1 and not (isinstance(mixer, Attention) and mixer.shares_kv):
        return Category.ATTN_QKV
    return _QKV[min(matrix.part, 2)]


def fitting(type_name: str, columns: int) -> WeightFormat:
    """The format of the type, or of its fallback where rows of ``columns`` are not whole blocks."""
    for candidate in (type_name, FALLBACK.get(type_name, LAST_FALLBACK)):
        if columns % GGML_TYPES_BY_NAME[candidate].block_elements == 0:
            return ggml(candidate)
    return ggml(LAST_FALLBACK)


def mixed(formats: Iterable[tuple[int, WeightFormat]]) -> WeightFormat:
    """One format for a matrix whose (rows, format) parts are stored as tensors of their own."""
    parts = list(formats)
    kinds = list(dict.fromkeys(part for _, part in parts))
    if len(kinds) == 1:
        return kinds[0]
    rows = sum(count for count, _ in parts)
    bits = sum((count * Fraction(part.bits) for count, part in parts), Fraction(0)) / rows
    return WeightFormat("+".join(kind.name for kind in kinds), bits)


def _experts(spec: ModelSpec) -> int:
    mixtures = (
        mlp for group in spec.groups for mlp in (group.layer.mlp, group.layer.extra_mlp)
        if isinstance(mlp, MixtureOfExperts)
    )  # fmt: skip
    return max((mlp.experts for mlp in mixtures), default=0)


def _grouping(spec: ModelSpec) -> int:
    """Query heads per KV head of the first attention layer; MLA counts one KV head."""
    for layer in spec.layers:
        for mixer in layer.mixers:
            if isinstance(mixer, Attention):
                return mixer.heads // mixer.kv_heads
            if isinstance(mixer, LatentAttention):
                return mixer.heads
    return 0


class GgufChooser:
    """A chooser for ``rewrite``, per layer, that does as the quantize tool does, counters and all."""

    def __init__(self, spec: ModelSpec, recipe: Recipe) -> None:
        self.spec = spec
        self.recipe = recipe
        self._value_index: dict[int, int] = {}  # layer -> how many layers before it have attn_v
        self._down_index: dict[int, int] = {}  # the same of ffn_down
        for index, layer in enumerate(spec.layers):
            kinds = {category(matrix) for matrix in layer_matrices(spec, layer, index)}
            if kinds & {Category.ATTN_V, Category.ATTN_QKV}:
                self._value_index[index] = len(self._value_index)
            if Category.FFN_DOWN in kinds:
                self._down_index[index] = len(self._down_index)
        gqa = _grouping(spec)
        self._first = Place(
            index=0,
            count=len(spec.layers),
            experts=_experts(spec),
            gqa=gqa,
            is_70b=spec.model_type in _70B_FAMILIES and len(spec.layers) == _70B_LAYERS and gqa > 1,
            is_falcon=spec.model_type == "falcon",
        )

    def __call__(self, matrix: Matrix) -> WeightFormat | None:
        """The format of one matrix."""
        if matrix.role is Role.ROUTER:
            return plain_format("fp32")
        kind = category(matrix)
        mixer = matrix.mixer
        if isinstance(mixer, LatentAttention) and matrix.linear == "kv_b_proj":
            # Stored as attn_k_b, transposed so that its rows are nope_dim long, and attn_v_b.
            default = self.recipe.default
            key, value = fitting(default, mixer.nope_dim), fitting(default, mixer.kv_lora_rank)
            return mixed([(mixer.nope_dim, key), (mixer.v_head_dim, value)])
        if kind is Category.ATTN_QKV and self.spec.model_type in _SPLIT_BY_CONVERTER:
            assert isinstance(mixer, Attention)
            rows = (mixer.heads * mixer.head_dim, *[mixer.kv_heads * mixer.head_dim] * 2)
            return mixed([(n, self._format(k, matrix)) for n, k in zip(rows, _QKV, strict=True)])
        if kind is Category.TOKEN_EMBD and self.spec.tied:
            kind = Category.OUTPUT  # the table is the head
        if matrix.role is Role.EXPERT and self.recipe.expert is not None:
            kind = Category.EXPERT
        return self._format(kind, matrix)

    def _format(self, kind: Category, matrix: Matrix) -> WeightFormat:
        type_name = self.recipe.choose(kind, self._place(kind, matrix))
        default_block = GGML_TYPES_BY_NAME[self.recipe.default].block_elements
        if kind is Category.OUTPUT and not self.recipe.plain and matrix.in_features % default_block:
            type_name = "Q8_0"
        return fitting(type_name, matrix.in_features)

    def _place(self, kind: Category, matrix: Matrix) -> Place:
        layer = matrix.layer or 0
        if kind in (Category.ATTN_V, Category.ATTN_QKV):
            return replace(self._first, index=self._value_index.get(layer, 0), count=len(self._value_index))
        # A mixture's tensors are placed by the layer's number, others by counting them.
        if kind is Category.FFN_DOWN and self._first.experts <= 1:
            return replace(self._first, index=self._down_index.get(layer, 0))
        return replace(self._first, index=layer)
