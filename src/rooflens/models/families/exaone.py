"""EXAONE 3, 3.5 and 4."""

from __future__ import annotations

from rooflens.errors import InputError
from rooflens.models.families.common import activation, norm, rotary
from rooflens.models.families.config import Config
from rooflens.models.families.llama import llama_like
from rooflens.models.families.moe import deepseek_style_mlps, note_mtp
from rooflens.models.families.olmo import post_norms
from rooflens.models.families.stack import Sizes, pre_norms, query_key_norms, read_sizes, stack, windows
from rooflens.models.spec import ModelSpec


def exaone(cfg: Config, name: str) -> ModelSpec:
    """EXAONE 3: Llama under GPT-2-like names."""
    sizes = read_sizes(cfg)
    eps = cfg.number("layer_norm_epsilon", "rms_norm_eps", default=1e-5)
    mixer = sizes.attention(
        rotary(cfg, sizes.head_dim, theta=1e4),
        prefix="attn.attention",
        names=("q_proj", "k_proj", "v_proj", "out_proj"),
    )
    return stack(
        cfg,
        name,
        attentions=[mixer] * sizes.layers,
        mlp=sizes.gated(
            cfg,
            activation=activation(cfg, "activation_function", "hidden_act"),
            names=("c_fc_0", "c_fc_1", "c_proj"),
        ),
        layer_norms=pre_norms(sizes.hidden, eps=eps, sources=("ln_1", "ln_2")),
        final_norm=norm("final_norm", sizes.hidden, "transformer.ln_f", eps=eps),
        embedding_source="transformer.wte",
        layer_prefix="transformer.h.{i}.",
    )


def _local(cfg: Config, index: int) -> bool:
    """Whether a layer has a window by ``sliding_window_pattern``: 4 or "LLLG" (every fourth has none)."""
    pattern = cfg.get("sliding_window_pattern")
    if isinstance(pattern, str):
        if not pattern or not set(pattern) <= {"L", "G"}:
            raise InputError(
                f"{cfg.where}: sliding_window_pattern is not usable",
                value=pattern,
                allowed="L and G, as LLLG",
            )
        return pattern[index % len(pattern)] == "L"
    return (index + 1) % cfg.size("sliding_window_pattern", default=4) != 0


def _windows(cfg: Config, sizes: Sizes) -> list[int | None]:
    return windows(cfg, sizes.layers, default=lambda index: _local(cfg, index), assumed=4096)


def exaone4(cfg: Config, name: str) -> ModelSpec:
    """EXAONE 4: norms on the outputs of the blocks; beside layers with windows the others do not rotate."""
    sizes = read_sizes(cfg)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    in_force = _windows(cfg, sizes)
    hybrid = any(in_force)
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        query_key=query_key_norms(sizes, eps=eps),
        layer_windows=in_force,
        rotated=[window is not None or not hybrid for window in in_force],
        layer_norms=post_norms(sizes.hidden, eps=eps),
        eps=1e-5,
    )


def exaone_moe(cfg: Config, name: str) -> ModelSpec:
    """K-EXAONE: EXAONE 4's attention before norms on the inputs, experts after the first dense layers."""
    sizes = read_sizes(cfg)
    eps = cfg.number("rms_norm_eps", default=1e-5)
    in_force = _windows(cfg, sizes)
    hybrid = any(in_force)
    first = cfg.count("first_k_dense_replace", default=1)
    kinds = cfg.items("mlp_layer_types", length=sizes.layers)
    if kinds is not None:
        first = kinds.count("dense")
        if kinds != ["dense"] * first + ["sparse"] * (sizes.layers - first):
            raise InputError(f"{cfg.where}: mlp_layer_types is not dense layers followed by sparse ones")
    note_mtp(cfg, "num_nextn_predict_layers")
    return llama_like(
        cfg,
        name,
        sizes=sizes,
        query_key=query_key_norms(sizes, eps=eps),
        layer_windows=in_force,
        rotated=[window is not None or not hybrid for window in in_force],
        mlp=deepseek_style_mlps(cfg, sizes, first_dense=first, correction="mlp.e_score_correction_bias"),
        eps=1e-5,
    )


ADAPTERS = {"exaone": exaone, "exaone4": exaone4, "exaone_moe": exaone_moe}
