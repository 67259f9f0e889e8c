"""Cutting a model over devices: the ModelSpec of one rank, and what the ranks must tell each other.

Tensor parallelism cuts matrices by heads and features, expert parallelism deals out whole experts,
pipeline parallelism deals out layers, data parallelism deals out requests. A rank's share is again a
ModelSpec, so costs and ledger of one device need no second set of formulas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from rooflens.errors import InputError
from rooflens.models.spec import (
    Attention,
    CompressedAttention,
    DenseMlp,
    LatentAttention,
    Layer,
    Linear,
    Mixer,
    MixtureOfExperts,
    Mlp,
    ModelSpec,
    Part,
    Recurrent,
)

# Engines pad the vocabulary to a multiple of this before they cut it.
VOCABULARY_PADDING = 64


@dataclass(frozen=True)
class Layout:
    """How many ways the work is cut: tensor, pipeline, expert and data parallel."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    @property
    def devices(self) -> int:
        """Devices in use; experts are spread over devices that tp and dp already count."""
        return self.tp * self.pp * self.dp


def resolve_layout(*, count: int, tp: int | None, pp: int, ep: int, dp: int) -> Layout:
    """The layout of ``count`` devices; without ``tp`` all that pp and dp leave are tensor parallel.

    Raises InputError where the product is not the number of devices or ep does not divide it.
    """
    for name, value in (("count", count), ("tp", tp), ("pp", pp), ("ep", ep), ("dp", dp)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(f"{name} must be at least 1", value=value, allowed="a whole number from 1")
    if tp is None:
        if count % (pp * dp):
            raise InputError(
                f"pp x dp = {pp * dp} does not divide the {count} devices",
                value=pp * dp,
                allowed=f"a divisor of {count}",
            )
        tp = count // (pp * dp)
    if tp * pp * dp != count:
        raise InputError(
            f"tp x pp x dp = {tp * pp * dp} is not the number of devices",
            value=f"tp={tp} pp={pp} dp={dp} count={count}",
            allowed=f"a product of {count}",
            next=f"set --count {tp * pp * dp}",
        )
    if (tp * dp) % ep:
        raise InputError(
            f"ep does not divide tp x dp = {tp * dp}", value=ep, allowed=f"a divisor of {tp * dp}"
        )
    return Layout(tp, pp, ep, dp)


def check_divisible(spec: ModelSpec, *, tp: int) -> None:
    """Refuse a tensor-parallel degree that vocabulary, heads or features do not divide by, naming them all.

    The vocabulary is named first, as engines meet it first; they pad it to a multiple of 64.
    """
    if tp == 1 or spec.free_form is not None:
        return
    sizes: dict[str, int] = {}
    if -(-spec.vocab_size // VOCABULARY_PADDING) * VOCABULARY_PADDING % tp:
        sizes["vocabulary entries"] = spec.vocab_size
    for group in spec.groups:
        for mixer in group.layer.mixers:
            if isinstance(mixer, (Attention, LatentAttention, CompressedAttention)) and mixer.heads % tp:
                sizes["attention heads"] = mixer.heads
            if isinstance(mixer, Attention) and mixer.kv_heads % tp and tp % mixer.kv_heads:
                sizes["KV heads"] = mixer.kv_heads
            if isinstance(mixer, Recurrent) and mixer.state_heads > 1 and mixer.state_heads % tp:
                sizes["state heads"] = mixer.state_heads
        for mlp in (group.layer.mlp, group.layer.extra_mlp):
            dense = mlp.expert if isinstance(mlp, MixtureOfExperts) else mlp
            if dense is not None and dense.intermediate_size % tp:
                sizes["MLP features"] = dense.intermediate_size
    if not sizes:
        return
    named = " and ".join(f"{value} {what}" for what, value in sizes.items())
    divisors = [n for n in range(1, 65) if all(value % n == 0 for value in sizes.values())]
    raise InputError(
        f"{named} are not divisible by tp={tp}",
        value=tp,
        allowed=f"tp of {', '.join(map(str, divisors))} for these sizes",
    )


def _cut(linear: Linear, tp: int) -> Linear:
    if linear.shard == "row":
        return replace(linear, in_features=linear.in_features // tp)
    if linear.shard == "column":
        parts = tuple(replace(part, out_features=-(-part.out_features // tp)) for part in linear.parts)
        return replace(linear, parts=parts)
    return linear


def _cut_qkv(linear: Linear, mixer: Attention, tp: int, kv_heads: int) -> Linear:
    """q, k, v by heads: KV heads are copied where there are fewer of them than ranks."""
    kv_rows = mixer.kv_heads * (mixer.head_dim + mixer.value_dim)
    if len(linear.parts) == 1 and not mixer.shares_kv:
        query_rows = linear.out_features - kv_rows
        rows = query_rows // tp + kv_rows * kv_heads // mixer.kv_heads
        return replace(linear, parts=(replace(linear.parts[0], out_features=rows),))
    parts: list[Part] = [replace(linear.parts[0], out_features=linear.parts[0].out_features // tp)]
    for part in linear.parts[1:]:
        parts.append(replace(part, out_features=part.out_features * kv_heads // mixer.kv_heads))
    return replace(linear, parts=tuple(parts))


def _cut_tensors(tensors: tuple[Any, ...], tp: int) -> tuple[Any, ...]:
    return tuple(
        replace(tensor, shape=(-(-tensor.shape[0] // tp), *tensor.shape[1:]))
        if tensor.shard == "column"
        else tensor
        for tensor in tensors
    )


def _cut_mixer(mixer: Mixer, tp: int) -> Mixer:
    parameters = _cut_tensors(mixer.parameters, tp)
    if isinstance(mixer, Attention):
        kv_heads = max(1, mixer.kv_heads // tp)
        linears = tuple(
            _cut_qkv(linear, mixer, tp, kv_heads) if linear.name == "qkv_proj" else _cut(linear, tp)
            for linear in mixer.linears
        )
        return replace(
            mixer, heads=mixer.heads // tp, kv_heads=kv_heads, linears=linears, parameters=parameters
        )
    linears = tuple(_cut(linear, tp) for linear in mixer.linears)
    if isinstance(mixer, (LatentAttention, CompressedAttention)):
        # The latent is one vector for all heads, so every rank keeps the whole of it.
        return replace(mixer, heads=mixer.heads // tp, linears=linears, parameters=parameters)
    tp_state = 1 if mixer.state_heads == 1 else tp
    return replace(
        mixer,
        linears=linears,
        parameters=parameters,
        state_elements=mixer.state_elements // tp_state,
        conv_elements=mixer.conv_elements // tp_state,
        flops_per_token=mixer.flops_per_token // tp_state,
        state_heads=mixer.state_heads // tp_state,
    )


def _cut_dense(mlp: DenseMlp, tp: int) -> DenseMlp:
    return replace(
        mlp,
        intermediate_size=mlp.intermediate_size // tp,
        linears=tuple(_cut(linear, tp) for linear in mlp.linears),
    )


def _cut_mlp(mlp: Mlp | None, tp: int, ep: int, dp: int) -> Mlp | None:
    if mlp is None:
        return None
    if isinstance(mlp, DenseMlp):
        return _cut_dense(mlp, tp)
    shared = _cut_dense(mlp.shared, tp) if mlp.shared else None
    if ep == 1:
        return replace(mlp, expert=_cut_dense(mlp.expert, tp), shared=shared)
    if mlp.experts % ep:
        raise InputError(
            f"{mlp.experts} experts are not divisible by ep={ep}",
            value=ep,
            allowed=f"a divisor of {mlp.experts}",
        )
    ways = tp * dp // ep
    if mlp.expert.intermediate_size % ways:
        raise InputError(
            f"the experts' {mlp.expert.intermediate_size} features are not divisible by "
            f"tp x dp / ep = {ways}",
            value=ways,
            allowed=f"a divisor of {mlp.expert.intermediate_size}",
        )
    # A rank holds experts / ep experts, each cut over the tp x dp / ep ranks that share them. The tokens of
    # all dp replicas visit them: top_k x dp / ep visits for every token of the rank's own replica.
    return replace(
        mlp,
        experts=mlp.experts // ep,
        top_k=min(mlp.experts // ep, max(1, -(-mlp.top_k * dp // ep))),
        expert=_cut_dense(mlp.expert, ways),
        shared=shared,
    )


def stage_layers(layers: int, pp: int) -> tuple[range, ...]:
    """The layers of each pipeline stage: as even as can be, the surplus before the last stage.

    The last stage also runs the output head, so it is the last to get one more layer (vLLM's
    ``get_pp_indices`` deals them the same way).
    """
    if pp > layers:
        raise InputError(f"{layers} layers cannot fill pp={pp} stages", value=pp, allowed=f"1 to {layers}")
    sizes = [layers // pp] * pp
    for surplus in range(layers % pp):
        sizes[pp - 2 - surplus] += 1
    starts = [sum(sizes[:stage]) for stage in range(pp)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


@lru_cache(maxsize=64)
def rank_specs(spec: ModelSpec, layout: Layout) -> tuple[ModelSpec, ...]:
    """What one device holds and runs, for each pipeline stage.

    Raises InputError where heads, features, vocabulary, experts or layers do not divide. The first
    stage has the token table, the last one the head (with its own copy of a tied table).
    """
    tp, pp, ep = layout.tp, layout.pp, layout.ep
    if tp * pp * ep == 1:
        return (spec,)
    if spec.free_form is not None:
        return (_cut_free_form(spec, tp * pp),) * pp
    check_divisible(spec, tp=tp)
    cut = {group.layer: _cut_layer(group.layer, layout) for group in spec.groups}
    layers = [cut[layer] for layer in spec.layers]
    embedding = replace(spec.embedding, rows=-(-spec.embedding.rows // tp)) if spec.embedding else None
    head = _cut(spec.head, tp) if spec.head else None
    stages = []
    for number, held in enumerate(stage_layers(len(layers), pp)):
        first, last = number == 0, number == pp - 1
        stages.append(
            replace(
                spec,
                layers=tuple(layers[held.start : held.stop]),
                embedding=embedding if first else None,
                tied=spec.tied and pp == 1,
                head=head if last else None,
                final_norm=spec.final_norm if last else None,
                norms=spec.norms if first else (),
                linears=tuple(_cut(linear, tp) for linear in spec.linears) if first else (),
                parameters_extra=spec.parameters_extra if first else (),
                components=spec.components if first else (),
                vocab_size=-(-spec.vocab_size // tp),
            )
        )
    return tuple(stages)


def _cut_layer(layer: Layer, layout: Layout) -> Layer:
    tp, ep, dp = layout.tp, layout.ep, layout.dp
    return replace(
        layer,
        mixers=tuple(_cut_mixer(mixer, tp) for mixer in layer.mixers),
        mlp=_cut_mlp(layer.mlp, tp, ep, dp),
        extra_mlp=_cut_mlp(layer.extra_mlp, tp, ep, dp),
        linears=tuple(_cut(linear, tp) for linear in layer.linears),
    )


def _cut_free_form(spec: ModelSpec, ways: int) -> ModelSpec:
    free = spec.free_form
    assert free is not None
    stored = None if free.weights_bytes is None else -(-free.weights_bytes // ways)
    return replace(
        spec,
        free_form=replace(
            free,
            parameters=-(-free.parameters // ways),
            active_parameters=-(-free.active_parameters // ways),
            kv_bytes_per_token=-(-free.kv_bytes_per_token // ways),
            weights_bytes=stored,
        ),
    )
