"""A step: who runs how many tokens at which context, and the operators that it consists of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rooflens.analysis.costs import (
    Cost,
    attention_cost,
    compressed_attention_cost,
    cross_attention_cost,
    elementwise_cost,
    embedding_cost,
    experts_cost,
    latent_attention_cost,
    linear_cost,
    recurrent_cost,
)
from rooflens.analysis.numeric import Quantity, where_positive
from rooflens.models.accounting import embedding_bytes, linear_bytes, tensor_bytes, weights_bytes
from rooflens.models.formats.base import dtype_bytes
from rooflens.models.formats.kv import kv_element_bytes
from rooflens.models.spec import (
    Attention,
    CompressedAttention,
    DenseMlp,
    LatentAttention,
    Layer,
    Linear,
    Mixer,
    Mlp,
    ModelSpec,
    Norm,
    Parameter,
)

# The linear of a cross-attention mixer that runs over what is attended to, not over the text.
CROSS_KV = "kv_proj"


class Phase(Enum):
    """The two phases of generation."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True)
class Step:
    """``sequences`` each run ``new_tokens`` after ``context`` cached ones; ``sampled`` get logits."""

    phase: Phase
    sequences: Quantity
    new_tokens: Quantity
    context: Quantity
    sampled: Quantity

    @property
    def tokens(self) -> Quantity:
        """Tokens that go through the layers."""
        return self.sequences * self.new_tokens


def prefill_step(
    *, sequences: Quantity, prompt: Quantity, context: Quantity = 0, last_chunk: bool = True
) -> Step:
    """A prefill of ``prompt`` tokens per sequence (or one chunk of it, after ``context`` tokens)."""
    return Step(Phase.PREFILL, sequences, prompt, context, sequences if last_chunk else 0 * sequences)


def decode_step(*, sequences: Quantity, context: Quantity) -> Step:
    """One token for each of ``sequences``, each holding ``context`` tokens already."""
    return Step(Phase.DECODE, sequences, 1, context, sequences)


@dataclass(frozen=True)
class Op:
    """One operator of a step: ``count`` equal ones, at the places ``indices`` where it is in a layer.

    ``name`` is the runtime's module path with ``{i}`` for the layer's number. ``compute_dtype`` is the
    type whose peak rate applies. ``expected_weight_bytes`` (experts only) is the likely figure beside
    the least one.
    """

    name: str
    cost: Cost
    compute_dtype: str
    indices: tuple[int, ...] | None = None
    expected_weight_bytes: Quantity | None = None

    @property
    def count(self) -> int:
        """How many equal operators this row stands for."""
        return 1 if self.indices is None else len(self.indices)

    @property
    def total(self) -> Cost:
        """The cost of all of them."""
        return self.cost * self.count


class _Builder:
    """Collects the operators of one step of one model."""

    def __init__(self, spec: ModelSpec, step: Step, kv_dtype: str) -> None:
        self.spec = spec
        self.step = step
        self.element = dtype_bytes(spec.dtype)
        self.kv_element = kv_element_bytes(kv_dtype)
        self.ops: list[Op] = []
        self.indices: tuple[int, ...] | None = None

    def add(self, name: str, cost: Cost, dtype: str | None = None, expected: Quantity | None = None) -> None:
        self.ops.append(Op(name, cost, dtype or self.spec.dtype, self.indices, expected))

    def linear(self, path: str, linear: Linear, tokens: Quantity, weight_bytes: int | None = None) -> None:
        stored = linear_bytes(linear, self.spec) if weight_bytes is None else weight_bytes
        cost = linear_cost(
            in_features=linear.in_features,
            out_features=linear.out_features,
            tokens=tokens,
            weight_bytes=stored,
            element_bytes=self.element,
        )
        self.add(path, cost, _compute_dtype(linear, self.spec))

    def norm(self, path: str, norm: Norm, tokens: Quantity, times: int = 1) -> None:
        cost = elementwise_cost(features=norm.size * times, tokens=tokens, element_bytes=self.element)
        self.add(path, cost + self.stored(norm))

    def stored(self, *tensors: Norm | Parameter) -> Cost:
        """The reading of small tensors that belong to an operator."""
        return Cost(weight_bytes=sum(tensor_bytes(tensor, self.spec) for tensor in tensors))

    def mixer(self, prefix: str, mixer: Mixer) -> None:
        step, tokens = self.step, self.step.tokens
        for linear in mixer.linears:
            own = tokens
            if isinstance(mixer, Attention) and mixer.cross_tokens is not None and linear.name == CROSS_KV:
                # Keys and values of an image or an encoder's output are made once, with the first tokens.
                memory = step.sequences * mixer.cross_tokens
                own = memory - where_positive(step.context, memory)
            self.linear(f"{prefix}.{linear.name}", linear, own)
        for norm in mixer.norms:
            heads = 1
            if isinstance(mixer, Attention) and norm.size == mixer.head_dim:
                heads = mixer.heads if norm.name.startswith("q") else mixer.kv_heads
            self.norm(f"{prefix}.{norm.name}", norm, tokens, heads)
        if isinstance(mixer, Attention):
            cost = self._attention(mixer)
        elif isinstance(mixer, LatentAttention):
            index_key = mixer.indexer_key_dim if mixer.indexer_cached else 0
            cost = latent_attention_cost(
                heads=mixer.heads,
                kv_lora_rank=mixer.kv_lora_rank,
                rope_dim=mixer.rope_dim,
                nope_dim=mixer.nope_dim,
                v_head_dim=mixer.v_head_dim,
                sequences=step.sequences,
                new_tokens=step.new_tokens,
                context=step.context,
                kv_bytes_per_token=mixer.latent_dim * self.kv_element,
                element_bytes=self.element,
                index_heads=mixer.indexer_heads,
                index_dim=mixer.indexer_key_dim,
                index_bytes_per_token=index_key * self.kv_element,
                index_top_k=mixer.indexer_top_k,
            )
        elif isinstance(mixer, CompressedAttention):
            cost = compressed_attention_cost(
                heads=mixer.heads,
                head_dim=mixer.head_dim,
                window=mixer.window,
                ratio=mixer.ratio,
                sequences=step.sequences,
                new_tokens=step.new_tokens,
                context=step.context,
                kv_element_bytes=self.kv_element,
                element_bytes=self.element,
                index_heads=mixer.indexer_heads,
                index_dim=mixer.indexer_key_dim,
                index_top_k=mixer.indexer_top_k,
            )
        else:
            state = mixer.state_elements * dtype_bytes(mixer.state_dtype) + mixer.conv_elements * self.element
            cost = recurrent_cost(
                flops_per_token=mixer.flops_per_token,
                state_bytes=state,
                sequences=step.sequences,
                new_tokens=step.new_tokens,
                context=step.context,
            )
        self.add(f"{prefix}.core", cost + self.stored(*mixer.parameters))

    def _attention(self, mixer: Attention) -> Cost:
        step = self.step
        kv_bytes = mixer.kv_heads * (mixer.head_dim + mixer.value_dim) * self.kv_element
        if mixer.cross_tokens is not None:
            return cross_attention_cost(
                heads=mixer.heads,
                head_dim=mixer.head_dim,
                v_head_dim=mixer.value_dim,
                sequences=step.sequences,
                new_tokens=step.new_tokens,
                memory_tokens=mixer.cross_tokens,
                kv_bytes_per_token=kv_bytes,
                element_bytes=self.element,
            )
        return attention_cost(
            heads=mixer.heads,
            kv_heads=mixer.kv_heads,
            head_dim=mixer.head_dim,
            v_head_dim=mixer.value_dim,
            sequences=step.sequences,
            new_tokens=step.new_tokens,
            context=step.context,
            kv_bytes_per_token=kv_bytes,
            element_bytes=self.element,
            window=mixer.window,
            chunked=mixer.chunked,
            causal=mixer.causal,
            shares_kv=mixer.shares_kv or not mixer.cached,
            index_heads=mixer.indexer_heads,
            index_dim=mixer.indexer_key_dim,
            index_bytes_per_token=mixer.indexer_key_dim * self.kv_element,
            index_top_k=mixer.indexer_top_k,
        )

    def mlp(self, prefix: str, mlp: Mlp) -> None:
        tokens = self.step.tokens
        if isinstance(mlp, DenseMlp):
            for linear in mlp.linears:
                self.linear(f"{prefix}.{linear.name}", linear, tokens)
            inputs = 2 if mlp.gated else 1
            cost = elementwise_cost(
                features=mlp.intermediate_size, tokens=tokens, element_bytes=self.element, inputs=inputs
            )
            self.add(f"{prefix}.activation", cost)
            for norm in mlp.norms:
                self.norm(f"{prefix}.{norm.name}", norm, tokens)
            return
        self.linear(f"{prefix}.{mlp.router.name}", mlp.router, tokens)
        if mlp.parameters:
            self.add(f"{prefix}.parameters", self.stored(*mlp.parameters))
        for linear in mlp.linears:
            self.linear(f"{prefix}.{linear.name}", linear, tokens)
        for linear in mlp.expert.linears:
            cost, expected = experts_cost(
                experts=mlp.experts,
                top_k=mlp.top_k,
                in_features=linear.in_features,
                out_features=linear.out_features,
                tokens=tokens,
                expert_bytes=linear_bytes(linear, self.spec),
                element_bytes=self.element,
            )
            self.add(f"{prefix}.experts.{linear.name}", cost, _compute_dtype(linear, self.spec), expected)
        if mlp.shared is not None:
            self.mlp(f"{prefix}.shared_expert", mlp.shared)
        if mlp.shared_gate is not None:
            self.linear(f"{prefix}.{mlp.shared_gate.name}", mlp.shared_gate, tokens)

    def layer(self, layer: Layer) -> None:
        prefix = "layers.{i}"
        for norm in layer.norms:
            self.norm(f"{prefix}.{norm.name}", norm, self.step.tokens)
        for mixer in layer.mixers:
            self.mixer(f"{prefix}.{mixer.attribute}", mixer)
        for name, mlp in (("mlp", layer.mlp), ("extra_mlp", layer.extra_mlp)):
            if mlp is not None:
                self.mlp(f"{prefix}.{name}", mlp)
        for linear in layer.linears:
            self.linear(f"{prefix}.{linear.name}", linear, self.step.tokens)
        if layer.parameters:
            self.add(f"{prefix}.parameters", self.stored(*layer.parameters))

    def free_form(self) -> None:
        spec, step, free = self.spec, self.step, self.spec.free_form
        assert free is not None
        stored = weights_bytes(spec)
        share = free.active_parameters / free.parameters
        cost = Cost(flops=2 * free.active_parameters * step.tokens, weight_bytes=stored * share)
        # Which experts a free-form sparse model would read is unknown: at least its active weights.
        expected = None if share == 1 else stored
        self.add("weights", cost, expected=expected)
        kv = attention_cost(
            heads=0,
            kv_heads=0,
            head_dim=0,
            v_head_dim=0,
            sequences=step.sequences,
            new_tokens=step.new_tokens,
            context=step.context,
            kv_bytes_per_token=free.kv_bytes_per_token,
            element_bytes=0,
        )
        self.add("kv_cache", kv)


def _compute_dtype(linear: Linear, spec: ModelSpec) -> str:
    weight_format = linear.parts[0].weight_format
    return (weight_format.compute_dtype if weight_format else None) or spec.dtype


def step_ops(spec: ModelSpec, step: Step, *, kv_dtype: str) -> tuple[Op, ...]:
    """The operators of a step in the order they run, equal layers as one row with its indices.

    Token counts of ``step`` may be arrays; every figure of the result then is one.
    """
    builder = _Builder(spec, step, kv_dtype)
    if spec.free_form is not None:
        builder.free_form()
        return tuple(builder.ops)
    for number, table in enumerate((spec.embedding, *spec.tables)):
        if table is None:
            continue
        builder.add(
            f"table_{number}" if number else "embedding",
            embedding_cost(
                dim=table.dim,
                rows=table.rows,
                tokens=step.tokens,
                row_bytes=embedding_bytes(table, spec) / table.rows,
                element_bytes=builder.element,
            ),
        )
    for linear in spec.linears:
        builder.linear(linear.name, linear, step.tokens)
    for norm in spec.norms:
        builder.norm(norm.name, norm, step.tokens)
    for group in spec.groups:
        builder.indices = group.indices
        builder.layer(group.layer)
    builder.indices = None
    if spec.final_norm is not None:
        builder.norm(spec.final_norm.name, spec.final_norm, step.tokens)
    if spec.head is not None and spec.generates:
        stored = None
        if spec.tied and spec.embedding is not None:
            stored = embedding_bytes(spec.embedding, spec)
        builder.linear(spec.head.name, spec.head, step.sampled, stored)
    return tuple(builder.ops)


def total_cost(ops: tuple[Op, ...]) -> Cost:
    """The sum over all operators."""
    total = Cost()
    for op in ops:
        total = total + op.total
    return total
