"""What vLLM's profiling run peaks at: a forward pass at the token budget, then the sampler.

The engine runs one dummy batch before it sizes its cache and keeps the highest point. Which of the two
is higher depends on the vocabulary and on max_num_seqs: on large GPUs the default of 1024 sequences
makes it the sampler for most models. Derivation and checks: docs/engine-ledgers.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from rooflens.analysis.engines.vllm_versions import SAMPLER_ROWS, WORKSPACE_BYTES, VllmRules
from rooflens.models.formats.base import dtype_bytes
from rooflens.models.spec import (
    Attention,
    DenseMlp,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    Mlp,
    ModelSpec,
    Rotary,
)
from rooflens.units import MIB

FP32_BYTES = 4
# Pixels of the dummy images that fill the encoder's budget, held while the text model is profiled.
IMAGE_INPUT_BYTES = 150 * MIB


@dataclass(frozen=True)
class Peak:
    """Bytes at the highest point, split by when it is reached; the engine keeps the larger one."""

    forward_bytes: int
    sampler_bytes: int

    @property
    def bytes(self) -> int:
        """The peak of the run."""
        return max(self.forward_bytes, self.sampler_bytes)


def _expert_workspace(mlp: MixtureOfExperts, hidden: int) -> int:
    """Elements per token of the fused experts' buffers: wide, narrow, and the summed output."""
    inner = mlp.expert.intermediate_size
    wide = mlp.top_k * max((2 if mlp.expert.gated else 1) * inner, hidden)
    return wide + mlp.top_k * inner + hidden


def _mlp_elements(mlp: Mlp | None, hidden: int) -> int:
    """Elements per token alive at once inside a feed-forward block."""
    if mlp is None:
        return 0
    if isinstance(mlp, DenseMlp):
        return (3 if mlp.gated else 2) * mlp.intermediate_size
    shared = _mlp_elements(mlp.shared, hidden)
    return _expert_workspace(mlp, hidden) + shared + 2 * mlp.experts


def _attention_elements(layer: Layer) -> int:
    widest = 0
    for mixer in layer.mixers:
        if isinstance(mixer, Attention):
            keys_values = mixer.kv_heads * (mixer.head_dim + mixer.value_dim)
            widest = max(widest, mixer.heads * (mixer.head_dim + mixer.value_dim) + keys_values)
        elif isinstance(mixer, LatentAttention):
            # Queries, and keys and values expanded from the latent for the prefill.
            per_head = 2 * (mixer.nope_dim + mixer.rope_dim) + 2 * mixer.v_head_dim
            widest = max(widest, mixer.heads * per_head)
        else:
            widest = max(widest, *(linear.out_features for linear in mixer.linears), 0)
    return widest


def forward_elements(stage: ModelSpec, *, residual_vectors: int) -> int:
    """Elements per token at the widest point of a layer.

    A gated feed-forward has gate and up (2 x intermediate) and their product (1 x) alive beside
    ``residual_vectors`` hidden vectors (input, residual, normed input, output; their number is inferred
    from logs: 4 compiled, 3 eager).
    """
    hidden = stage.hidden_size
    inside = max(
        (
            max(_mlp_elements(layer.mlp, hidden), _mlp_elements(layer.extra_mlp, hidden),
                _attention_elements(layer))
            for layer in (group.layer for group in stage.groups)
        ),
        default=0,
    )  # fmt: skip
    return inside + residual_vectors * hidden


def profile_peak(
    stage: ModelSpec,
    *,
    rules: VllmRules,
    tokens: int,
    sequences: int,
    vocabulary: int,
    first: bool,
    last: bool,
) -> Peak:
    """The peak of one stage at ``tokens`` batched tokens and ``sequences`` dummy requests.

    The sampler holds ``rules.sampler_logit_bytes`` per logit (a tensor-parallel rank gathers the whole
    vocabulary), the hidden states of all tokens and twice those of the sampled rows.
    """
    element = dtype_bytes(stage.dtype)
    hidden = stage.hidden_size
    held = WORKSPACE_BYTES + (0 if first else int(2 * tokens * hidden * element))
    if any(component.kind == "vision" for component in stage.components):
        # Encoder outputs for a whole budget of tokens, and the images that they came from.
        held += int(tokens * hidden * element) + IMAGE_INPUT_BYTES
    vectors = rules.residual_vectors
    forward = held + int(tokens * element * forward_elements(stage, residual_vectors=vectors))
    if not last or not rules.v1 or not stage.generates:
        return Peak(forward, 0)
    rows = min(sequences, tokens)
    logit = rules.sampler_logit_bytes
    if stage.dtype == "fp32":
        logit -= 2  # the logits are fp32 already: no second copy
    sampler = held + rows * vocabulary * logit + int((tokens + 2 * rows) * hidden * element)
    if rules.sampler_buffer:
        sampler += SAMPLER_ROWS * vocabulary * FP32_BYTES
    if rules.keeps_expert_workspace:
        kept = (
            _expert_workspace(mlp, hidden)
            for group in stage.groups
            for mlp in (group.layer.mlp, group.layer.extra_mlp)
            if isinstance(mlp, MixtureOfExperts)
        )
        sampler += int(tokens * element * max(kept, default=0))
    return Peak(forward, sampler)


def rotary_table_bytes(stage: ModelSpec) -> int:
    """Cosines and sines that the engine tabulates for every position, once per kind of rotary embedding.

    Linear scaling by a factor tabulates factor x max_context positions (Gemma 3: 1,048,576 x 256 x 2 B).
    """
    element = dtype_bytes(stage.dtype)
    rotaries: set[Rotary] = set()
    for group in stage.groups:
        for mixer in group.layer.mixers:
            rotary = getattr(mixer, "rotary", None)
            if rotary is not None:
                rotaries.add(rotary)
    total = 0.0
    for rotary in rotaries:
        scaling = dict(rotary.scaling)
        kind = str(scaling.get("rope_type", scaling.get("type", "")))
        factor = float(scaling.get("factor", 1.0)) if kind in ("linear", "dynamic") else 1.0
        tables = 2 if kind in ("longrope", "su") else 1
        total += (stage.max_context or 0) * factor * tables * rotary.dim * element
    return int(total)
