"""What llama.cpp calls the tensors of a model, from the names that this description gives them.

One table serves all architectures, since a block has one name here whatever its family; where files differ,
the ways are listed in the order in which they are tried. Source: ``gguf-py/gguf/constants.py`` of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator

from rooflens.models.headers.slots import Slot

#: Tensors that are computed from the metadata when a model is converted: nothing is trained in them.
TABLES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
#: What stands beside a matrix under its name: scales of formats that keep one for a whole matrix.
BESIDE = (".scale", ".input_scale")

_GATE_UP = (("ffn_gate", "ffn_up"), ("ffn_up",), ("ffn_gate_shexp", "ffn_up_shexp"))

# path, with ":part/parts" where a matrix has several -> the ways to store it, each a list of tensors.
_MATRICES: dict[str, tuple[tuple[str, ...], ...]] = {
    "embedding": (("token_embd",),),
    "per_layer_embedding": (("per_layer_token_embd",),),
    "head": (("output",),),
    "per_layer_model_projection": (("per_layer_model_proj",),),
    "attention.qkv_proj": (("attn_qkv",), ("attn_q", "attn_k", "attn_v"), ("attn_q",)),
    "attention.qkv_proj:0/2": (("attn_q",),),
    "attention.qkv_proj:1/2": (("attn_k",),),
    "attention.qkv_proj:0/3": (("attn_q",), ("attn_qkv",)),
    "attention.qkv_proj:1/3": (("attn_k",), ("attn_qkv",)),
    "attention.qkv_proj:2/3": (("attn_v",), ("attn_qkv",)),
    "attention.o_proj": (("attn_output",),),
    "attention.q_proj": (("attn_q",),),
    "attention.q_a_proj": (("attn_q_a",),),
    "attention.q_b_proj": (("attn_q_b",),),
    "attention.kv_a_proj": (("attn_kv_a_mqa",),),
    "attention.kv_b_proj": (("attn_k_b", "attn_v_b"), ("attn_kv_b",)),
    "attention.indexer.q_proj": (("indexer.attn_q_b",),),
    "attention.indexer.k_proj": (("indexer.attn_k",),),
    "attention.indexer.weights_proj": (("indexer.proj",),),
    "attention.g_proj": (("attn_gate",),),
    "linear_attention.in_proj_qkvz": (("attn_qkv", "attn_gate"), ("ssm_in",)),
    "linear_attention.in_proj_qkvz:0/2": (("attn_qkv",),),
    "linear_attention.in_proj_qkvz:1/2": (("attn_gate",),),
    "linear_attention.in_proj_ba": (("ssm_ba",), ("ssm_beta", "ssm_alpha")),
    "linear_attention.in_proj_ba:0/2": (("ssm_beta",),),
    "linear_attention.in_proj_ba:1/2": (("ssm_alpha",),),
    "linear_attention.out_proj": (("ssm_out",),),
    "linear_attention.qkv_proj:0/3": (("attn_q",),),
    "linear_attention.qkv_proj:1/3": (("attn_k",),),
    "linear_attention.qkv_proj:2/3": (("attn_v",),),
    "linear_attention.o_proj": (("attn_output",),),
    "linear_attention.f_a_proj": (("ssm_f_a",),),
    "linear_attention.f_b_proj": (("ssm_f_b",),),
    "linear_attention.g_a_proj": (("ssm_g_a",),),
    "linear_attention.g_b_proj": (("ssm_g_b",),),
    "linear_attention.b_proj": (("ssm_beta",),),
    "mamba.in_proj": (("ssm_in",),),
    "mamba.x_proj": (("ssm_x",),),
    "mamba.dt_proj": (("ssm_dt",),),
    "mamba.out_proj": (("ssm_out",),),
    "conv.in_proj": (("shortconv.in_proj",),),
    "conv.out_proj": (("shortconv.out_proj",),),
    "mlp.gate_up_proj": _GATE_UP,
    "mlp.gate_up_proj:0/2": (("ffn_gate",),),
    "mlp.gate_up_proj:1/2": (("ffn_up",),),
    "mlp.up_proj": (("ffn_up",),),
    "mlp.down_proj": (("ffn_down",), ("ffn_down_shexp",)),
    "mlp.router": (("ffn_gate_inp",),),
    "mlp.shared_gate": (("ffn_gate_inp_shexp",),),
    "mlp.latent_down_proj": (("ffn_latent_down",),),
    "mlp.latent_up_proj": (("ffn_latent_up",),),
    "mlp.experts.gate_up_proj": (("ffn_gate_exps", "ffn_up_exps"), ("ffn_gate_up_exps",)),
    "mlp.experts.gate_up_proj:0/2": (("ffn_gate_exps",), ("ffn_gate_up_exps",), ("ffn_gate.{e}",)),
    "mlp.experts.gate_up_proj:1/2": (("ffn_up_exps",), ("ffn_gate_up_exps",), ("ffn_up.{e}",)),
    "mlp.experts.up_proj": (("ffn_up_exps",),),
    "mlp.experts.down_proj": (("ffn_down_exps",), ("ffn_down.{e}",)),
    "mlp.shared_expert.gate_up_proj": (("ffn_gate_shexp", "ffn_up_shexp"),),
    "mlp.shared_expert.gate_up_proj:0/2": (("ffn_gate_shexp",),),
    "mlp.shared_expert.gate_up_proj:1/2": (("ffn_up_shexp",),),
    "mlp.shared_expert.up_proj": (("ffn_up_shexp",),),
    "mlp.shared_expert.down_proj": (("ffn_down_shexp",),),
    "altup.modality_router": (("altup_router",),),
    "altup.prediction_coefs": (("altup_predict_coef",),),
    "altup.correction_coefs": (("altup_correct_coef",),),
    "altup_projections": (("altup_proj",),),
    "altup_unembed_projections": (("altup_unembd_proj",),),
    "laurel.left": (("laurel_l",),),
    "laurel.right": (("laurel_r",),),
    "per_layer_input_gate": (("inp_gate",),),
    "per_layer_projection": (("proj",),),
}

# path -> the ways to store a norm; its weight and its bias end in ".weight" and ".bias".
_NORMS: dict[str, tuple[str, ...]] = {
    "final_norm": ("output_norm", "token_embd_norm"),
    "embedding_norm": ("token_embd_norm",),
    "per_layer_projection_norm": ("per_layer_proj_norm",),
    "attention_norm": ("attn_norm",),
    # Files call the norm before the feed-forward by what it stands after, where that has no norm of its own.
    "mlp_norm": ("ffn_norm", "post_attention_norm", "attn_norm_2", "attn_output_norm", "attn_norm"),
    "mlp_norm_2": ("pre_ffw_norm_2",),
    "post_attention_norm": ("post_attention_norm",),
    "post_mlp_norm": ("post_ffw_norm",),
    "post_mlp_norm_1": ("post_ffw_norm_1",),
    "post_mlp_norm_2": ("post_ffw_norm_2",),
    "post_per_layer_input_norm": ("post_norm",),
    "attention.q_norm": ("attn_q_norm",),
    "attention.k_norm": ("attn_k_norm",),
    "attention.q_a_norm": ("attn_q_a_norm",),
    "attention.kv_a_norm": ("attn_kv_a_norm",),
    "attention.indexer.k_norm": ("indexer.k_norm",),
    "attention.o_proj_norm": ("attn_sub_norm",),
    "mlp.down_proj_norm": ("ffn_sub_norm",),
    "mamba.norm": ("ssm_norm",),
    "mamba.dt_norm": ("ssm_dt_norm",),
    "mamba.b_norm": ("ssm_b_norm",),
    "mamba.c_norm": ("ssm_c_norm",),
    "linear_attention.norm": ("ssm_norm",),
    "linear_attention.o_norm": ("ssm_norm",),
    "laurel.norm": ("laurel_post_norm",),
    "altup.router_norm": ("altup_router_norm",),
}

_CORRECTION = ("exp_probs_b.bias", "exp_probs_b")
# path -> the ways to store another tensor, whole names; none at all for what the metadata keeps.
_TENSORS: dict[str, tuple[str, ...]] = {
    "position_embedding": ("position_embd.weight",),
    "attention.sinks": ("attn_sinks.weight",),
    "mlp.correction_bias": _CORRECTION,
    "mlp.e_score_correction_bias": _CORRECTION,
    "mlp.expert_bias": _CORRECTION,
    "mlp.router_bias": _CORRECTION,
    "mlp.router.scale": ("ffn_gate_inp.scale",),
    "mlp.router.per_expert_scale": ("ffn_down_exps.scale",),
    "layer_scalar": ("layer_output_scale.weight",),
    "mamba.conv1d": ("ssm_conv1d.weight",),
    "mamba.conv1d_bias": ("ssm_conv1d.bias",),
    "mamba.dt_bias": ("ssm_dt.bias",),
    "mamba.a_log": ("ssm_a",),
    "mamba.d": ("ssm_d",),
    "linear_attention.conv1d": ("ssm_conv1d.weight",),
    "linear_attention.q_conv1d": ("ssm_conv1d_q.weight",),
    "linear_attention.k_conv1d": ("ssm_conv1d_k.weight",),
    "linear_attention.v_conv1d": ("ssm_conv1d_v.weight",),
    "linear_attention.dt_bias": ("ssm_dt.bias",),
    "linear_attention.a_log": ("ssm_a",),
    "conv.conv": ("shortconv.conv.weight",),
    "conv.conv_bias": ("shortconv.conv.bias",),
    "altup.output_scale": ("altup_correct_scale.weight",),
    "alpha_p": (),
    "alpha_n": (),
    "beta": (),
    "eps": (),
}


def stored_ways(slot: Slot, *, limit: int) -> Iterator[tuple[str, ...]]:
    """The ways in which files store a slot, in the order to try them: the tensors that it takes together.

    ``limit``: how many tensors the file has; experts are not looked for one by one where they are more.
    A way that several slots share is one tensor that holds them all. Nothing for a slot that llama.cpp
    has no tensor for; raises KeyError for a path that is in no table.
    """
    block = slot.path.replace("extra_mlp.", "mlp.", 1)
    prefix = "" if slot.layer is None else f"blk.{slot.layer}."
    if block in _NORMS:
        for name in _NORMS[block]:
            yield (f"{prefix}{name}.{slot.kind}",)
            if slot.kind == "weight":
                yield (prefix + name,)  # Falcon-H1's files leave the ending out
    elif slot.kind == "tensor":
        yield from ((prefix + name,) for name in _TENSORS[block])
    else:
        suffix = ".weight" if slot.kind == "matrix" else ".bias"
        for way in _matrix_ways(block, slot):
            names = [f"{prefix}{name}{suffix}" for name in way]
            apart = "{e}" in names[0]
            if not apart:
                yield tuple(names)
            elif slot.copies <= limit:
                yield tuple(names[0].replace("{e}", str(expert)) for expert in range(slot.copies))


def _matrix_ways(block: str, slot: Slot) -> tuple[tuple[str, ...], ...]:
    if slot.parts > 1:
        return _MATRICES[f"{block}:{slot.part}/{slot.parts}"]
    head, _, number = block.rpartition(".")
    return _MATRICES[head if number.isdecimal() and head else block]
