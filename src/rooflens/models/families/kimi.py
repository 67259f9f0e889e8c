"""Kimi Linear and K3 (Kimi Delta Attention beside latent attention), K2.5 and K3 with images.

Source: Kimi Linear's and K2.5's code in Hugging Face transformers; K3, which is not there, from the
tensor names and shapes of its published checkpoint.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflens.errors import InputError
from rooflens.models.families.common import activation, decoder, gated_mlp, linear, mixture, norm, with_notes
from rooflens.models.families.config import Config
from rooflens.models.families.deepseek import CORRECTION_BIAS, latent_attention
from rooflens.models.families.nested import language_model, text_config, with_defaults, wrapped
from rooflens.models.families.qwen_hybrid import delta_rule_flops
from rooflens.models.families.stack import pre_norms
from rooflens.models.families.vision import encoder_layer, layer_norm, matrix, patches, qwen_merger
from rooflens.models.spec import (
    Component,
    LatentAttention,
    Layer,
    Linear,
    MixerKind,
    MixtureOfExperts,
    ModelSpec,
    Norm,
    Parameter,
    Part,
    Recurrent,
)

_LOW_RANK_EPS = 1e-6


def delta_attention(cfg: Config, hidden: int, *, eps: float) -> Recurrent:
    """Kimi Delta Attention: the gated delta rule with a decay of its own for every key feature."""
    sizes = cfg.section("linear_attn_config") or Config({}, where=f"{cfg.where}: linear_attn_config")
    dim = sizes.size("head_dim", default=cfg.size("linear_head_dim", default=128))
    heads = sizes.size("num_heads", default=cfg.size("linear_num_heads", default=32))
    kernel = sizes.size("short_conv_kernel_size", default=cfg.size("linear_conv_kernel_dim", default=4))
    wide, own = heads * dim, "self_attn"
    qkv = tuple(Part(f"{own}.{name}_proj", wide) for name in "qkv")
    linears = [
        Linear("qkv_proj", hidden, qkv),
        linear("f_a_proj", hidden, dim, f"{own}.f_a_proj", shard="replicated"),
        linear("f_b_proj", dim, wide, f"{own}.f_b_proj"),
        linear("b_proj", hidden, heads, f"{own}.b_proj"),
    ]
    if sizes.flag("use_full_rank_gate", default=False):
        linears.append(linear("g_proj", hidden, wide, f"{own}.g_proj"))
    else:
        linears.append(linear("g_a_proj", hidden, dim, f"{own}.g_a_proj", shard="replicated"))
        linears.append(linear("g_b_proj", dim, wide, f"{own}.g_b_proj"))
    linears.append(linear("o_proj", wide, hidden, f"{own}.o_proj", shard="row"))
    convolutions = tuple(
        Parameter(f"{name}_conv1d", (wide, 1, kernel), f"{own}.{name}_conv1d.weight", "column")
        for name in "qkv"
    )
    return Recurrent(
        kind=MixerKind.LINEAR,
        attribute="linear_attention",
        linears=tuple(linears),
        state_elements=heads * dim * dim,
        conv_elements=3 * wide * (kernel - 1),
        flops_per_token=delta_rule_flops(heads=heads, key_dim=dim, value_dim=dim) + 6 * wide * kernel,
        state_heads=heads,
        norms=(norm("o_norm", dim, f"{own}.o_norm", eps=eps),),
        parameters=(
            *convolutions,
            Parameter("dt_bias", (wide,), f"{own}.dt_bias", "column", dtype="fp32"),
            Parameter("a_log", (1, 1, heads, 1), f"{own}.A_log", dtype="fp32"),
        ),
        variant="kda",
        key_heads=heads,
        key_dim=dim,
        value_heads=heads,
        value_dim=dim,
        conv_kernel=kernel,
    )


def _full_layers(cfg: Config, layers: int) -> list[bool]:
    """Which layers have full attention: ``layer_types``, or the lists of layer numbers, counted from 1."""
    types = cfg.kinds("layer_types", known=("full_attention", "linear_attention"), length=layers)
    if types is not None:
        return [kind == "full_attention" for kind in types]
    lists = cfg.section("linear_attn_config")
    full = lists.numbers("full_attn_layers") if lists is not None else None
    delta = lists.numbers("kda_layers") if lists is not None else None
    if full is None or delta is None:
        raise InputError(f"{cfg.where} says neither layer_types nor full_attn_layers and kda_layers")
    if sorted([*full, *delta]) != list(range(1, layers + 1)):
        raise InputError(f"{cfg.where}: full_attn_layers and kda_layers do not make up {layers} layers")
    return [number in set(full) for number in range(1, layers + 1)]


def _latent(cfg: Config, hidden: int) -> LatentAttention:
    """Latent attention without positions, in K3 with a gate on its output."""
    mixer = latent_attention(cfg, hidden=hidden, eps=_LOW_RANK_EPS)
    if cfg.flag("mla_use_nope", default=True):
        mixer = replace(mixer, rotary=None)
    if cfg.flag("mla_use_output_gate", default=False):
        gate = linear("g_proj", hidden, mixer.heads * mixer.v_head_dim, "self_attn.g_proj")
        mixer = replace(mixer, linears=(*mixer.linears, gate))
    return mixer


def _experts(cfg: Config, hidden: int) -> MixtureOfExperts:
    """Routed experts, in K3 on a narrower latent that all of them share, beside shared experts."""
    own = "block_sparse_moe"
    count, size = cfg.size("num_experts", "num_local_experts"), cfg.size("moe_intermediate_size")
    shared = cfg.count("num_shared_experts", "n_shared_experts")
    width = cfg.size("routed_expert_hidden_size", default=hidden)
    act = activation(cfg)
    linears: tuple[Linear, ...] = ()
    parameters = [
        Parameter(CORRECTION_BIAS, (count,), f"{own}.gate.{CORRECTION_BIAS}", dtype="fp32", buffer=True)
    ]
    if width != hidden:
        linears = (
            linear("latent_down_proj", hidden, width, f"{own}.routed_expert_down_proj", shard="replicated"),
            linear("latent_up_proj", width, hidden, f"{own}.routed_expert_up_proj", shard="replicated"),
        )
        if cfg.flag("latent_moe_use_norm", default=False):
            parameters.append(Parameter("latent_norm", (width,), f"{own}.routed_expert_norm.weight"))
    return mixture(
        hidden=hidden,
        experts=count,
        top_k=cfg.size("num_experts_per_token", "num_experts_per_tok"),
        expert=gated_mlp(
            hidden=width,
            intermediate=size,
            activation=act,
            prefix=f"{own}.experts.{{e}}",
            names=("w1", "w3", "w2"),
        ),
        router_source=f"{own}.gate",
        shared=gated_mlp(
            hidden=hidden, intermediate=size * shared, activation=act, prefix=f"{own}.shared_experts"
        )
        if shared
        else None,
        linears=linears,
        parameters=tuple(parameters),
    )


def _depth_attention(hidden: int, eps: float, *names: tuple[str, str]) -> tuple[list[Norm], list[Linear]]:
    """K3's attention over the outputs of earlier blocks of layers: a norm and one learnt query each."""
    norms = [norm(f"{name}_norm", hidden, f"{source}_norm", eps=eps) for name, source in names]
    return norms, [
        linear(f"{name}_proj", hidden, 1, f"{source}_proj", shard="replicated") for name, source in names
    ]


def kimi_linear(cfg: Config, name: str) -> ModelSpec:
    """Kimi Linear and the language model of K3."""
    cfg = with_defaults(cfg, q_lora_rank=None, first_k_dense_replace=1)
    hidden, count = cfg.size("hidden_size"), cfg.layers("num_hidden_layers")
    eps = cfg.number("rms_norm_eps", default=1e-5)
    delta, latent = delta_attention(cfg, hidden, eps=eps), _latent(cfg, hidden)
    first = cfg.count("first_k_dense_replace")
    types = cfg.kinds("mlp_layer_types", known=("dense", "sparse"), length=count)
    sparse = [kind == "sparse" for kind in types] if types else [index >= first for index in range(count)]
    experts = _experts(cfg, hidden) if any(sparse) else None
    dense = gated_mlp(hidden=hidden, intermediate=cfg.size("intermediate_size"), activation=activation(cfg))
    norms = list(pre_norms(hidden, eps=eps))
    depth_norms: list[Norm] = []
    depth_linears: list[Linear] = []
    frame: dict[str, Any] = {}
    if cfg.count("attn_res_block_size"):
        depth_norms, depth_linears = _depth_attention(
            hidden, eps, ("attention_res", "self_attention_res"), ("mlp_res", "mlp_res")
        )
        last_norms, last_linears = _depth_attention(hidden, eps, ("output_res", "model.output_attn_res"))
        frame = {"norms": tuple(last_norms), "linears": tuple(last_linears)}
        cfg.note("the layout of K3's extra tensors is that of its published checkpoint")
    layers = [
        Layer(
            (latent if full else delta,),
            experts if is_sparse else dense,
            (*norms, *depth_norms),
            linears=tuple(depth_linears),
        )
        for full, is_sparse in zip(_full_layers(cfg, count), sparse, strict=True)
    ]
    spec = decoder(
        cfg, name, layers=layers, final_norm=norm("final_norm", hidden, "model.norm", eps=eps), **frame
    )
    if spec.max_context is None:
        spec = replace(spec, max_context=cfg.optional_size("model_max_length"))
    return with_notes(spec, cfg)


def _positions(cfg: Config) -> int:
    rows = cfg.size("init_pos_emb_height", "pos_emb_height", default=64)
    return rows * cfg.size("init_pos_emb_width", "pos_emb_width", default=64)


def _merge(cfg: Config) -> int:
    kernel = cfg.numbers("merge_kernel_size", length=2, least=1) or [2, 2]
    if kernel[0] != kernel[1]:
        raise InputError(f"{cfg.where}: merge_kernel_size is not square", value=kernel)
    return int(kernel[0])


def _components(tower: int, projector: int) -> list[Component]:
    return [Component("vision_tower", "vision", tower), Component("mm_projector", "projector", projector)]


def kimi_k25(cfg: Config, name: str) -> ModelSpec:
    """Kimi K2.5 and later, and Kimi-VL: DeepSeek-V3's layers with a MoonViT tower."""
    spec = language_model(text_config(cfg), name, "kimi_k2")
    section = cfg.section("vision_config") or Config({}, where=f"{cfg.where}: vision_config")
    section.notes = cfg.notes
    tower = with_defaults(section, patch_size=14)
    hidden = tower.size("vt_hidden_size", "hidden_size", default=1152)
    layer = encoder_layer(hidden, tower.size("vt_intermediate_size", "intermediate_size", default=4304))
    count = tower.size("vt_num_hidden_layers", "num_hidden_layers", default=27)
    images = patches(tower, hidden, bias=True) + _positions(tower) * hidden + count * layer
    projector = qwen_merger(hidden, _merge(tower), spec.hidden_size, norm=layer_norm(hidden))
    return wrapped(
        spec,
        cfg,
        components=_components(images + layer_norm(hidden), projector),
        model="language_model.model.",
        head="language_model.lm_head",
    )


def kimi_k3(cfg: Config, name: str) -> ModelSpec:
    """Kimi K3: the wide Kimi Linear with a MoonViT tower without biases."""
    spec = language_model(text_config(cfg), name, "kimi_linear")
    tower = cfg.section("vision_config")
    components: list[Component] = []
    if tower is not None:
        if tower.text("norm_type", default="rmsnorm") != "rmsnorm" or tower.flag(
            "linear_bias", default=False
        ):
            raise InputError(
                f"{tower.where}: only the published tower is known", allowed="rmsnorm, no biases"
            )
        hidden, width = (
            tower.size("vt_hidden_size"),
            tower.size("qkv_hidden_size", default=tower.size("vt_hidden_size")),
        )
        layer = encoder_layer(
            hidden, tower.size("vt_intermediate_size"), bias=False, norm=hidden, attention_width=width
        )
        images = patches(tower, hidden, bias=tower.flag("patch_embed_proj_bias", default=False))
        images += _positions(tower) * hidden + tower.layers("vt_num_hidden_layers") * layer + hidden
        merged = tower.size("mm_hidden_size", default=hidden) * _merge(tower) ** 2
        outputs = tower.size("text_hidden_size", default=spec.hidden_size)
        projector = matrix(merged, merged, bias=False) + matrix(merged, outputs, bias=False) + outputs
        components = _components(images, projector)
    return wrapped(
        spec, cfg, components=components, model="language_model.model.", head="language_model.lm_head"
    )


ADAPTERS = {"kimi_linear": kimi_linear, "kimi_k25": kimi_k25, "kimi_vl": kimi_k25, "kimi_k3": kimi_k3}
