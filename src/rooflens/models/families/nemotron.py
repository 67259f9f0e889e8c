"""Nemotron-H: every layer is one thing, Mamba-2, attention, a feed-forward or experts."""

from __future__ import annotations

from rooflens.errors import InputError
from rooflens.models.accounting import layer_parameters
from rooflens.models.families.common import (
    attention,
    decoder,
    head_sizes,
    linear,
    mixture,
    norm,
    plain_mlp,
    with_notes,
)
from rooflens.models.families.config import Config
from rooflens.models.families.deepseek import CORRECTION_BIAS
from rooflens.models.families.mamba import mamba2_mixer
from rooflens.models.families.nested import with_defaults
from rooflens.models.spec import Component, DenseMlp, Layer, Linear, MixtureOfExperts, ModelSpec, Parameter

# The letters of hybrid_override_pattern and the names of layers_block_type.
KINDS = {
    "M": "mamba",
    "*": "attention",
    "-": "mlp",
    "E": "moe",
    "linear_attention": "mamba",
    "full_attention": "attention",
    "mamba": "mamba",
    "attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}


def block_kinds(cfg: Config, pattern: str, *names: str) -> list[str] | None:
    """The kind of every layer from a pattern of letters or a list of names; None where there is neither."""
    letters = cfg.get(pattern)
    kinds = list(letters) if isinstance(letters, str) else cfg.items(*names)
    if kinds is None:
        return None
    unknown = [kind for kind in kinds if not isinstance(kind, str) or kind not in KINDS]
    if unknown:
        raise InputError(
            f"{cfg.where}: {pattern} has an unknown kind of layer", value=unknown[0], allowed="M, *, -, E"
        )
    return [KINDS[kind] for kind in kinds]


def _feed_forward(cfg: Config, hidden: int, size: int, prefix: str) -> DenseMlp:
    act = cfg.text("mlp_hidden_act", default="relu2")
    return plain_mlp(
        hidden=hidden,
        intermediate=size,
        activation=act,
        bias=cfg.flag("mlp_bias", default=False),
        prefix=prefix,
    )


def _experts(cfg: Config, hidden: int) -> MixtureOfExperts:
    """Routed experts, on a narrower latent where ``moe_latent_size`` says so, beside one shared expert."""
    count, bias = cfg.size("n_routed_experts", "num_experts"), cfg.flag("mlp_bias", default=False)
    latent = cfg.optional_size("moe_latent_size")
    shared = cfg.count("moe_shared_expert_intermediate_size") * min(
        1, cfg.count("n_shared_experts", default=1)
    )
    linears: tuple[Linear, ...] = ()
    if latent is not None:
        linears = (
            linear(
                "latent_down_proj", hidden, latent, "mixer.fc1_latent_proj", bias=bias, shard="replicated"
            ),
            linear("latent_up_proj", latent, hidden, "mixer.fc2_latent_proj", bias=bias, shard="replicated"),
        )
    size = cfg.size("moe_intermediate_size")
    expert = plain_mlp(
        hidden=latent or hidden,
        intermediate=size,
        activation=cfg.text("mlp_hidden_act", default="relu2"),
        bias=False,
        prefix="mixer.experts.{e}",
    )
    return mixture(
        hidden=hidden,
        experts=count,
        top_k=cfg.size("num_experts_per_tok"),
        expert=expert,
        router_source="mixer.gate",
        shared=_feed_forward(cfg, hidden, shared, "mixer.shared_experts") if shared else None,
        linears=linears,
        parameters=(
            Parameter(CORRECTION_BIAS, (count,), f"mixer.gate.{CORRECTION_BIAS}", dtype="fp32", buffer=True),
        ),
    )


def nemotron_h(cfg: Config, name: str) -> ModelSpec:
    """Nemotron-H and Nemotron 3."""
    cfg = with_defaults(cfg, n_groups=8, conv_kernel=4, ssm_state_size=128, mamba_head_dim=64)
    kinds = block_kinds(cfg, "hybrid_override_pattern", "layers_block_type", "layer_types")
    if not kinds:
        raise InputError(f"{cfg.where} has neither hybrid_override_pattern nor layers_block_type")
    declared = cfg.optional_size("num_hidden_layers")
    if declared not in (None, len(kinds)):
        cfg.note(
            f"num_hidden_layers {declared} contradicts the pattern of {len(kinds)} layers, which is used"
        )
    hidden = cfg.size("hidden_size")
    eps = cfg.number("layer_norm_epsilon", "norm_eps", "rms_norm_eps", default=1e-5)
    used = set(kinds) | set(predicted := _predicted(cfg))
    blocks: dict[str, Layer] = {}
    if "mamba" in used:
        mixer = mamba2_mixer(
            cfg,
            hidden=hidden,
            heads=cfg.size("mamba_num_heads"),
            head_dim=cfg.size("mamba_head_dim"),
            groups=cfg.size("mamba_n_groups", "n_groups"),
            state=cfg.size("ssm_state_size"),
            kernel=cfg.size("mamba_d_conv", "conv_kernel"),
            eps=eps,
            conv_bias=cfg.flag("mamba_conv_bias", "use_conv_bias", default=True),
            bias=cfg.flag("use_bias", default=False),
        )
        blocks["mamba"] = Layer((mixer,), None, (norm("attention_norm", hidden, "norm", eps=eps),))
    if "attention" in used:
        heads, kv_heads, head_dim = head_sizes(
            cfg, hidden, default_head_dim=cfg.optional_size("attention_head_dim")
        )
        full = attention(
            hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, rotary=None, prefix="mixer"
        )
        blocks["attention"] = Layer((full,), None, (norm("attention_norm", hidden, "norm", eps=eps),))
    mlp_norm = (norm("mlp_norm", hidden, "norm", eps=eps),)
    if "mlp" in used:
        blocks["mlp"] = Layer(
            (), _feed_forward(cfg, hidden, cfg.size("intermediate_size"), "mixer"), mlp_norm
        )
    if "moe" in used:
        blocks["moe"] = Layer((), _experts(cfg, hidden), mlp_norm)
    spec = decoder(
        cfg,
        name,
        layers=[blocks[kind] for kind in kinds],
        final_norm=norm("final_norm", hidden, "backbone.norm_f", eps=eps),
        embedding_source="backbone.embeddings",
        layer_prefix="backbone.layers.{i}.",
        components=_mtp(cfg, hidden, [blocks[kind] for kind in predicted]),
    )
    return with_notes(spec, cfg)


def _predicted(cfg: Config) -> list[str]:
    """The kinds of the layers that predict further tokens."""
    if not cfg.count("num_nextn_predict_layers"):
        return []
    found = block_kinds(cfg, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    return found if found is not None else ["attention", "moe"]


def _mtp(cfg: Config, hidden: int, blocks: list[Layer]) -> tuple[Component, ...]:
    """The prediction blocks, two input norms, the projection of both inputs and a final norm."""
    if not blocks:
        return ()
    count = cfg.count("num_nextn_predict_layers")
    one = sum(layer_parameters(block)[0] for block in blocks) + 2 * hidden * hidden + 3 * hidden
    return (Component("mtp", "mtp", one * count),)


ADAPTERS = {"nemotron_h": nemotron_h}
