"""GGUF architectures with latent attention, recurrent layers, shared caches or heads that differ by layer.

Arrays with one number per layer tell the kinds of layers apart: 0 KV heads mean a recurrent one. Source: the
loaders of the architectures in llama.cpp, ``src/models``.
"""

from __future__ import annotations

from typing import Any

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.gguf_metadata.dense import granite_scales
from rooflens.models.gguf_metadata.fields import (
    FULL,
    O_BIAS,
    Q_BIAS,
    SLIDING,
    Family,
    by_kind,
    experts,
    layer_kinds,
)
from rooflens.models.gguf_metadata.keys import GgufKeys

_KV_HEADS = "attention.head_count_kv"


def _attends(keys: GgufKeys) -> list[bool]:
    """Which layers have attention: those with KV heads."""
    return [heads > 0 for heads in keys.by_layer(_KV_HEADS)]


def _latent(keys: GgufKeys) -> dict[str, Any]:
    """Sizes of latent attention. Files older than the compressed cache have the sizes of whole heads."""
    rope = keys.whole("rope.dimension_count")
    key = keys.whole("attention.key_length_mla", default=keys.whole("attention.key_length", default=0))
    value = keys.whole("attention.value_length_mla", default=keys.whole("attention.value_length", default=0))
    if not rope < key or not value:
        raise InputError(
            f"{keys.architecture}: the sizes of the heads do not leave room for {rope} rotated features",
            value=key,
        )
    compressed = keys.has("attention.q_lora_rank") and keys.holds("attn_q_a.weight")
    return {
        "num_key_value_heads": keys.whole("attention.head_count"),
        "head_dim": None,
        "partial_rotary_factor": None,
        "kv_lora_rank": keys.whole("attention.kv_lora_rank"),
        "q_lora_rank": keys.whole("attention.q_lora_rank") if compressed else None,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": key - rope,
        "v_head_dim": value,
        "first_k_dense_replace": keys.whole("leading_dense_block_count", default=0),
    }


def _yarn(keys: GgufKeys) -> dict[str, Any]:
    """DeepSeek's YaRN: the file keeps a tenth of mscale_all_dim, from which llama.cpp scales the scores."""
    if keys.get("rope.scaling.type") != "yarn":
        return {}
    scaling: dict[str, Any] = {"rope_type": "yarn", "factor": keys.number("rope.scaling.factor")}
    original = "rope.scaling.original_context_length"
    if keys.has(original):
        scaling["original_max_position_embeddings"] = keys.whole(original)
    if keys.has("rope.scaling.yarn_log_multiplier"):
        scaling["mscale_all_dim"] = keys.number("rope.scaling.yarn_log_multiplier") / 0.1
    return {"rope_scaling": scaling}


def _deepseek2(keys: GgufKeys) -> dict[str, Any]:
    """DeepSeek V2, V3, R1 and Kimi K2; a correction bias of the router tells V3's kind."""
    corrected = keys.holds("exp_probs_b.bias")
    return {
        **experts(keys),
        **_latent(keys),
        **_yarn(keys),
        "model_type": "deepseek_v3" if corrected else "deepseek_v2",
        "topk_method": "noaux_tc" if corrected else "greedy",
    }


def _indexer(keys: GgufKeys) -> dict[str, Any]:
    return {
        "index_n_heads": keys.whole("attention.indexer.head_count"),
        "index_head_dim": keys.whole("attention.indexer.key_length"),
        "index_topk": keys.whole("attention.indexer.top_k"),
    }


def _deepseek32(keys: GgufKeys) -> dict[str, Any]:
    return {**_deepseek2(keys), "model_type": "deepseek_v32", **_indexer(keys)}


def _glm_dsa(keys: GgufKeys) -> dict[str, Any]:
    """GLM-5: the layers that hold an indexer's tensors have one, the others follow an earlier layer's."""
    return {
        **_deepseek2(keys),
        "model_type": "glm_moe_dsa",
        **_indexer(keys),
        "indexer_types": ["full" if own else "shared" for own in keys.layers_with("indexer.attn_k.weight")]
        if keys.tensors
        else ["full"] * keys.layers,
    }


def _kimi_linear(keys: GgufKeys) -> dict[str, Any]:
    attends = _attends(keys)
    numbered = list(enumerate(attends, start=1))
    return {
        **experts(keys),
        **_latent(keys),
        "model_type": "kimi_linear",
        "num_shared_experts": keys.whole("expert_shared_count", default=0),
        "linear_attn_config": {
            "head_dim": keys.whole("kda.head_dim"),
            "num_heads": keys.whole("attention.head_count"),
            "short_conv_kernel_size": keys.whole("ssm.conv_kernel"),
            "full_attn_layers": [number for number, full in numbered if full],
            "kda_layers": [number for number, full in numbered if not full],
        },
    }


def _delta_net(keys: GgufKeys) -> dict[str, Any]:
    """Gated delta networks with full attention in every few layers."""
    value_heads, inner = keys.whole("ssm.time_step_rank"), keys.whole("ssm.inner_size")
    if not value_heads or inner % value_heads:
        raise InputError(
            f"{keys.architecture}: ssm.time_step_rank does not divide {inner}", value=value_heads
        )
    if isinstance(keys.get("attention.recurrent_layers"), tuple):
        recurrent = [bool(value) for value in keys.by_layer("attention.recurrent_layers")]
    else:
        every = keys.whole("full_attention_interval", default=4) or 1
        recurrent = [(index + 1) % every != 0 for index in range(keys.layers)]
    return {
        "linear_conv_kernel_dim": keys.whole("ssm.conv_kernel"),
        "linear_key_head_dim": keys.whole("ssm.state_size"),
        "linear_value_head_dim": inner // value_heads,
        "linear_num_key_heads": keys.whole("ssm.group_count"),
        "linear_num_value_heads": value_heads,
        "layer_types": ["linear_attention" if kind else FULL for kind in recurrent],
        "mtp_num_hidden_layers": keys.predicted,
    }


def _delta_experts(model_type: str) -> Family:
    return lambda keys: {
        **experts(keys),
        **_delta_net(keys),
        "model_type": model_type,
        "shared_expert_intermediate_size": keys.whole("expert_shared_feed_forward_length", default=0),
    }


def _qwen35(keys: GgufKeys) -> dict[str, Any]:
    return {"model_type": "qwen3_5_text", **_delta_net(keys)}


def _mamba(keys: GgufKeys) -> dict[str, Any]:
    return {
        "model_type": "falcon_mamba" if keys.flag("ssm.dt_b_c_rms", default=False) else "mamba",
        "state_size": keys.whole("ssm.state_size"),
        "conv_kernel": keys.whole("ssm.conv_kernel"),
        "time_step_rank": keys.whole("ssm.time_step_rank"),
        "intermediate_size": keys.whole("ssm.inner_size"),
        "use_conv_bias": keys.holds("ssm_conv1d.bias") or not keys.tensors,
        "layer_norm_epsilon": keys.number("attention.layer_norm_rms_epsilon"),
    }


def _mamba_heads(keys: GgufKeys) -> tuple[int, int]:
    """Heads of Mamba-2 and the features of one."""
    heads, inner = keys.whole("ssm.time_step_rank"), keys.whole("ssm.inner_size")
    if not heads or inner % heads:
        raise InputError(f"{keys.architecture}: ssm.time_step_rank does not divide {inner}", value=heads)
    return heads, inner // heads


def _mamba2(keys: GgufKeys) -> dict[str, Any]:
    heads, size = _mamba_heads(keys)
    return {
        "model_type": "mamba2",
        "state_size": keys.whole("ssm.state_size"),
        "conv_kernel": keys.whole("ssm.conv_kernel"),
        "n_groups": keys.whole("ssm.group_count"),
        "num_heads": heads,
        "head_dim": size,
        "expand": heads * size / max(keys.whole("embedding_length"), 1),
        "use_conv_bias": keys.holds("ssm_conv1d.bias") or not keys.tensors,
        "layer_norm_epsilon": keys.number("attention.layer_norm_rms_epsilon"),
    }


def _period(marks: list[bool], *, what: str) -> dict[str, int]:
    """The period and offset that Jamba's config gives instead of a list. Raises UnsupportedError for none."""
    chosen = [index for index, mark in enumerate(marks) if mark]
    if not chosen:
        return {f"{what}_layer_period": len(marks) + 1, f"{what}_layer_offset": len(marks)}
    period = chosen[1] - chosen[0] if len(chosen) > 1 else len(marks)
    if chosen != list(range(chosen[0], len(marks), period)) or chosen[0] >= period:
        raise UnsupportedError(f"the {what} layers do not stand at equal distances", value=chosen[:8])
    return {f"{what}_layer_period": period, f"{what}_layer_offset": chosen[0]}


def _jamba(keys: GgufKeys) -> dict[str, Any]:
    sparse = keys.layers_with("ffn_gate_inp.weight")
    count = keys.whole("expert_count", default=0)
    return {
        **experts(keys),
        "model_type": "jamba",
        "num_experts": count if any(sparse) else 1,
        "mamba_d_state": keys.whole("ssm.state_size"),
        "mamba_d_conv": keys.whole("ssm.conv_kernel"),
        "mamba_dt_rank": keys.whole("ssm.time_step_rank"),
        "mamba_expand": keys.whole("ssm.inner_size") // max(keys.whole("embedding_length"), 1),
        **_period(_attends(keys), what="attn"),
        **_period(sparse, what="expert"),
    }


def _mamba2_mixer(keys: GgufKeys) -> dict[str, Any]:
    """Mamba-2 beside attention, under the names of Granite and Falcon-H1."""
    heads, size = _mamba_heads(keys)
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": size,
        "mamba_d_state": keys.whole("ssm.state_size"),
        "mamba_d_conv": keys.whole("ssm.conv_kernel"),
        "mamba_n_groups": keys.whole("ssm.group_count"),
        "mamba_conv_bias": keys.holds("ssm_conv1d.bias") or not keys.tensors,
        "mamba_proj_bias": keys.holds("ssm_in.bias"),
    }


def _falcon_h1(keys: GgufKeys) -> dict[str, Any]:
    return {
        "model_type": "falcon_h1",
        **_mamba2_mixer(keys),
        "mamba_d_ssm": keys.whole("ssm.inner_size"),
        "mamba_rms_norm": keys.holds("ssm_norm.weight"),
        "attention_bias": keys.holds(Q_BIAS),
        "mlp_bias": keys.holds("ffn_up.bias"),
    }


def _granite_hybrid(keys: GgufKeys) -> dict[str, Any]:
    """Granite 4 H, and Bamba, whose only feed-forward is what Granite calls the shared one."""
    count = keys.whole("expert_count", default=0)
    shared = keys.whole("expert_shared_feed_forward_length", default=0)
    inner, hidden = keys.whole("ssm.inner_size"), max(keys.whole("embedding_length"), 1)
    return {
        **(experts(keys) if count else {}),
        **granite_scales(keys),
        "model_type": "granitemoehybrid",
        **_mamba2_mixer(keys),
        "mamba_expand": inner / hidden,
        "num_local_experts": count,
        "shared_intermediate_size": shared or keys.whole("feed_forward_length"),
        "layer_types": ["attention" if attends else "mamba" for attends in _attends(keys)],
        "position_embedding_type": "rope" if keys.flag("rope.scaling.finetuned", default=True) else "nope",
        "attention_bias": keys.holds(Q_BIAS),
    }


def _nemotron_h(keys: GgufKeys) -> dict[str, Any]:
    """Every layer is one thing: attention, experts, a feed-forward, or what is left: Mamba."""
    heads, size = _mamba_heads(keys)
    sparse, wide = keys.layers_with("ffn_gate_inp.weight"), keys.by_layer("feed_forward_length")
    letters = [
        "*" if attends else "E" if routed else "-" if width else "M"
        for attends, routed, width in zip(_attends(keys), sparse, wide, strict=True)
    ]
    return {
        **(experts(keys) if any(sparse) else {}),
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "".join(letters),
        "mamba_num_heads": heads,
        "mamba_head_dim": size,
        "n_groups": keys.whole("ssm.group_count"),
        "ssm_state_size": keys.whole("ssm.state_size"),
        "conv_kernel": keys.whole("ssm.conv_kernel"),
        "moe_shared_expert_intermediate_size": keys.whole("expert_shared_feed_forward_length", default=0),
        "n_shared_experts": min(1, keys.whole("expert_shared_count", default=0)),
        "moe_latent_size": keys.whole("moe_latent_size", default=0) or None,
        "use_bias": keys.holds("ssm_in.bias"),
        "mlp_bias": keys.holds("ffn_up.bias"),
    }


def _lfm2(keys: GgufKeys) -> dict[str, Any]:
    return {
        "model_type": "lfm2",
        "conv_L_cache": keys.whole("shortconv.l_cache"),
        "conv_bias": keys.holds("shortconv.conv.bias"),
        "layer_types": [FULL if attends else "conv" for attends in _attends(keys)],
        "block_auto_adjust_ff_dim": False,
        "tie_embedding": "output.weight" not in keys.tensors,
    }


def _lfm2_moe(keys: GgufKeys) -> dict[str, Any]:
    return {
        **experts(keys),
        **_lfm2(keys),
        "model_type": "lfm2_moe",
        "num_dense_layers": keys.whole("leading_dense_block_count", default=0),
        "use_expert_bias": keys.holds("exp_probs_b.bias") or not keys.tensors,
    }


def _mimo2(keys: GgufKeys) -> dict[str, Any]:
    """KV heads of windowed and of full layers apart, and values narrower than keys."""
    kinds = layer_kinds(keys)
    kv_heads = by_kind(keys, _KV_HEADS, kinds)
    full, sliding = kv_heads.get(FULL, 0), kv_heads.get(SLIDING, 0)
    sparse = keys.layers_with("ffn_gate_inp.weight")
    return {
        **experts(keys),
        "model_type": "mimo_v2_flash",
        "layernorm_epsilon": keys.number("attention.layer_norm_rms_epsilon"),
        "num_key_value_heads": full or sliding,
        "swa_num_key_value_heads": sliding or full,
        "v_head_dim": keys.whole("attention.value_length"),
        "hybrid_layer_pattern": [int(kind == SLIDING) for kind in kinds],
        "sliding_window": keys.whole("attention.sliding_window"),
        "swa_rope_theta": keys.number("rope.freq_base_swa", default=10000.0),
        "moe_layer_freq": [int(routed) for routed in sparse],
        "n_shared_experts": 0,
        "add_swa_attention_sink_bias": _sinks(keys, kinds, SLIDING),
        "add_full_attention_sink_bias": _sinks(keys, kinds, FULL),
        "attention_bias": keys.holds(Q_BIAS) or keys.holds(O_BIAS),
    }


def _sinks(keys: GgufKeys, kinds: list[str], kind: str) -> bool:
    held = keys.layers_with("attn_sinks.weight")
    return any(sinks and own == kind for sinks, own in zip(held, kinds, strict=True))


def _step35(keys: GgufKeys) -> dict[str, Any]:
    """More query heads in the windowed layers, a gate for each, experts after the first dense layers."""
    kinds = layer_kinds(keys)
    heads, kv_heads = by_kind(keys, "attention.head_count", kinds), by_kind(keys, _KV_HEADS, kinds)
    size = keys.size("attention.key_length")
    sparse = keys.layers_with("ffn_gate_inp.weight")
    thetas = {
        FULL: keys.number("rope.freq_base", default=10000.0),
        SLIDING: keys.number("rope.freq_base_swa", default=10000.0),
    }
    return {
        **experts(keys),
        "model_type": "step3p5",
        "head_dim": size,
        "layer_types": kinds,
        "sliding_window": keys.whole("attention.sliding_window"),
        "num_attention_heads": heads.get(FULL, 0) or heads.get(SLIDING, 0),
        "num_attention_groups": kv_heads.get(FULL, 0) or kv_heads.get(SLIDING, 0),
        "attention_other_setting": {
            "num_attention_heads": heads.get(SLIDING, 0) or heads.get(FULL, 0),
            "num_attention_groups": kv_heads.get(SLIDING, 0) or kv_heads.get(FULL, 0),
        },
        "moe_layers_enum": [index for index, routed in enumerate(sparse) if routed],
        "share_expert_dim": keys.whole("expert_shared_feed_forward_length", default=0),
        "rope_theta": [thetas[kind] for kind in kinds],
        # llama.cpp rotates half of a head in the full layers, whatever the file says.
        "partial_rotary_factors": [0.5 if kind == FULL else 1.0 for kind in kinds],
        "attention_bias": keys.holds(Q_BIAS),
    }


HYBRIDS: dict[str, Family] = {
    "deepseek2": _deepseek2,
    "deepseek32": _deepseek32,
    "glm-dsa": _glm_dsa,
    "kimi-linear": _kimi_linear,
    "qwen3next": _delta_experts("qwen3_next"),
    "qwen35": _qwen35,
    "qwen35moe": _delta_experts("qwen3_5_moe_text"),
    "mamba": _mamba,
    "mamba2": _mamba2,
    "jamba": _jamba,
    "falcon-h1": _falcon_h1,
    "granitehybrid": _granite_hybrid,
    "nemotron_h": _nemotron_h,
    "nemotron_h_moe": _nemotron_h,
    "lfm2": _lfm2,
    "lfm2moe": _lfm2_moe,
    "mimo2": _mimo2,
    "step35": _step35,
}
