"""Cohere Command R and Aya: attention and feed-forward side by side after one LayerNorm without bias."""

from __future__ import annotations

from dataclasses import replace

from rooflens.models.families.common import norm, rotary
from rooflens.models.families.config import Config
from rooflens.models.families.stack import Sizes, read_sizes, stack, windows
from rooflens.models.spec import Attention, ModelSpec, Norm


def _cohere(cfg: Config, name: str, sizes: Sizes, attentions: list[Attention], *, eps: float) -> ModelSpec:
    def layer_norm(x: str, source: str) -> Norm:
        return norm(x, sizes.hidden, source, eps=eps, kind="layer", bias=False)

    # Command R's positions are 8192 on paper, and its context is what model_max_length says.
    longer = cfg.optional_size("model_max_length")
    if longer is not None and longer != cfg.get("max_position_embeddings"):
        cfg.note(f"the context is model_max_length {longer}, not max_position_embeddings")
    return stack(
        cfg,
        name,
        attentions=attentions,
        mlp=sizes.gated(cfg),
        layer_norms=(layer_norm("attention_norm", "input_layernorm"),),
        final_norm=layer_norm("final_norm", "model.norm"),
        parallel=True,
        tied_default=True,
        max_context=longer,
        head_scale=cfg.number("logit_scale", default=0.0625),
    )


def cohere(cfg: Config, name: str) -> ModelSpec:
    """Command R, Command R+, Aya 23: in the larger ones every head of q and k has a norm of its own."""
    sizes = read_sizes(cfg)
    eps = cfg.number("layer_norm_eps", default=1e-5)
    bias = cfg.flag("attention_bias", default=False)
    query_key: tuple[Norm, ...] = ()
    if cfg.flag("use_qk_norm", default=False):
        query_key = tuple(
            norm(x, sizes.head_dim, f"self_attn.{x}", eps=eps, kind="layer", bias=False, groups=heads)
            for x, heads in (("q_norm", sizes.heads), ("k_norm", sizes.kv_heads))
        )
    position = rotary(cfg, sizes.head_dim, interleaved=True, theta=5e5)
    mixer = sizes.attention(position, qkv_bias=bias, o_bias=bias, norms=query_key)
    return _cohere(cfg, name, sizes, [mixer] * sizes.layers, eps=eps)


def cohere2(cfg: Config, name: str) -> ModelSpec:
    """Command R7B and Command A: three layers with a window and rotary positions for one with neither."""
    sizes = read_sizes(cfg)
    bias = cfg.flag("attention_bias", default=False)
    pattern = cfg.size("sliding_window_pattern", default=4)
    everywhere = sizes.attention(None, qkv_bias=bias, o_bias=bias)
    local = replace(everywhere, rotary=rotary(cfg, sizes.head_dim, interleaved=True))
    in_force = windows(cfg, sizes.layers, default=lambda index: (index + 1) % pattern != 0, assumed=4096)
    sliding = {window: replace(local, window=window) for window in set(in_force) if window}
    attentions = [sliding[window] if window else everywhere for window in in_force]
    return _cohere(cfg, name, sizes, attentions, eps=cfg.number("layer_norm_eps", default=1e-5))


ADAPTERS = {"cohere": cohere, "cohere2": cohere2}
