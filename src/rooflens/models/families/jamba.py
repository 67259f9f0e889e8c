"""Jamba: Mamba layers with attention and experts at regular intervals; Zamba 2: blocks shared by layers.

Source: the models' code in Hugging Face transformers.
"""

from __future__ import annotations

from dataclasses import replace

from rooflens.errors import InputError
from rooflens.models.families.common import (
    activation,
    attention,
    decoder,
    gated_mlp,
    head_sizes,
    linear,
    mixture,
    norm,
    rotary,
    with_notes,
)
from rooflens.models.families.config import Config
from rooflens.models.families.mamba import mamba1_mixer, mamba2_mixer, time_step_rank
from rooflens.models.families.nested import with_defaults
from rooflens.models.families.stack import pre_norms
from rooflens.models.spec import Attention, DenseMlp, Layer, Linear, Mlp, ModelSpec, Norm, Part


def jamba(cfg: Config, name: str) -> ModelSpec:
    """Jamba 1.5 and later."""
    cfg = with_defaults(
        cfg,
        num_experts=16,
        num_experts_per_tok=2,
        expert_layer_period=2,
        expert_layer_offset=1,
        attn_layer_period=8,
        attn_layer_offset=4,
        mamba_d_state=16,
        mamba_d_conv=4,
        mamba_expand=2,
    )
    hidden, count = cfg.size("hidden_size"), cfg.layers("num_hidden_layers")
    eps, size = cfg.number("rms_norm_eps", default=1e-6), cfg.size("intermediate_size")
    heads, kv_heads, head_dim = head_sizes(cfg, hidden)
    full = attention(hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, rotary=None)
    rank, state = time_step_rank(cfg, hidden, "mamba_dt_rank"), cfg.size("mamba_d_state")
    inner_norms = tuple(
        norm(f"{part}_norm", width, f"mamba.{part}_layernorm", eps=eps)
        for part, width in (("dt", rank), ("b", state), ("c", state))
    )
    other = mamba1_mixer(
        cfg,
        hidden=hidden,
        inner=cfg.size("mamba_expand") * hidden,
        state=state,
        kernel=cfg.size("mamba_d_conv"),
        rank=rank,
        conv_bias=cfg.flag("mamba_conv_bias", default=True),
        bias=cfg.flag("mamba_proj_bias", default=False),
        norms=inner_norms,
        source="mamba",
    )
    act, experts = activation(cfg), cfg.size("num_experts")
    dense: Mlp = gated_mlp(hidden=hidden, intermediate=size, activation=act, prefix="feed_forward")
    sparse: Mlp = dense
    if experts > 1:
        sparse = mixture(
            hidden=hidden,
            experts=experts,
            top_k=cfg.size("num_experts_per_tok"),
            expert=gated_mlp(
                hidden=hidden, intermediate=size, activation=act, prefix="feed_forward.experts.{e}"
            ),
            router_source="feed_forward.router",
        )

    def every(kind: str, index: int) -> bool:
        return index % cfg.size(f"{kind}_layer_period") == cfg.count(f"{kind}_layer_offset")

    norms = pre_norms(hidden, eps=eps, sources=("input_layernorm", "pre_ff_layernorm"))
    spec = decoder(
        cfg,
        name,
        layers=[
            Layer((full if every("attn", i) else other,), sparse if every("expert", i) else dense, norms)
            for i in range(count)
        ],
        final_norm=norm("final_norm", hidden, "model.final_layernorm", eps=eps),
    )
    return with_notes(spec, cfg)


def _borrowed(linears: tuple[Linear, ...], own: set[str]) -> tuple[Linear, ...]:
    return tuple(item if item.name in own else replace(item, borrowed=True) for item in linears)


class _SharedBlock:
    """Zamba 2's transformer block: on the layer's input beside the embedding, with adapters per use."""

    def __init__(self, cfg: Config, hidden: int, eps: float) -> None:
        self.cfg, self.hidden, self.eps = cfg, hidden, eps
        self.wide, self.rank = 2 * hidden, cfg.size("adapter_rank")
        self.size = cfg.size("intermediate_size", default=4 * hidden)

    def attention(self, use: int) -> Attention:
        """Attention over twice the hidden size; KV heads and caches belong to the use, not the block."""
        heads = self.cfg.size("num_attention_heads")
        kv_heads, dim = self.cfg.size("num_key_value_heads", default=heads), self.wide // heads
        source = "shared_transformer.self_attn"
        position = rotary(self.cfg, dim) if self.cfg.flag("use_mem_rope", default=False) else None
        base = attention(
            hidden=self.wide,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=dim,
            rotary=position,
            prefix=source,
            scale=(dim / 2) ** -0.5,
        )
        qkv, out = base.linears
        out = replace(out, parts=(Part(f"{source}.o_proj", self.hidden),))
        adapters: list[Linear] = []
        if self.cfg.flag("use_shared_attention_adapter", default=False):
            for letter in "qkv":
                own = f"{source}.linear_{letter}_adapter_list.{use}"
                adapters.append(
                    linear(f"{letter}_adapter_down", self.wide, self.rank, f"{own}.0", shard="replicated")
                )
                adapters.append(linear(f"{letter}_adapter_up", self.rank, self.wide, f"{own}.1"))
        return replace(base, linears=(qkv, out, *adapters))

    def feed_forward(self, use: int) -> DenseMlp:
        """The feed-forward with the low-rank adapter of this use on its gate and up matrix."""
        source, bias = "shared_transformer.feed_forward", self.cfg.flag("add_bias_linear", default=False)
        base = gated_mlp(
            hidden=self.hidden,
            intermediate=self.size,
            activation=activation(self.cfg, default="gelu"),
            bias=bias,
            prefix=source,
            fused="gate_up_proj",
        )
        own = f"{source}.gate_up_proj_adapter_list.{use}"
        down = linear("adapter_down", self.hidden, self.rank, f"{own}.0", shard="replicated")
        up = linear("adapter_up", self.rank, 2 * self.size, f"{own}.1")
        return replace(base, linears=(*base.linears, down, up))

    def norms(self) -> tuple[Norm, ...]:
        """The norms of the block's two inputs."""
        own = "shared_transformer"
        return (
            norm("shared_attention_norm", self.wide, f"{own}.input_layernorm", eps=self.eps),
            norm("mlp_norm", self.hidden, f"{own}.pre_ff_layernorm", eps=self.eps),
        )

    def layer(self, mixer: Layer, use: int) -> Layer:
        """A Mamba layer with the block before it; all but the first use of a block borrow its weights."""
        full, mlp, norms = self.attention(use), self.feed_forward(use), self.norms()
        if use >= self.cfg.size("num_mem_blocks"):
            adapters = {x.name for x in (*full.linears, *mlp.linears) if "adapter" in x.name}
            full = replace(full, linears=_borrowed(full.linears, adapters))
            mlp = replace(mlp, linears=_borrowed(mlp.linears, adapters))
            norms = tuple(replace(item, borrowed=True) for item in norms)
        joint = linear("shared_proj", self.hidden, self.hidden, "linear", shard="replicated")
        return Layer((full, *mixer.mixers), mlp, (*norms, *mixer.norms), linears=(joint,))


def zamba2(cfg: Config, name: str) -> ModelSpec:
    """Zamba 2: one or two transformer blocks used by many Mamba-2 layers, each use with its own cache."""
    cfg = with_defaults(
        cfg,
        mamba_d_state=64,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_ngroups=1,
        n_mamba_heads=8,
        num_mem_blocks=1,
        adapter_rank=128,
    )
    hidden, count = cfg.size("hidden_size"), cfg.layers("num_hidden_layers")
    eps, heads = cfg.number("rms_norm_eps", default=1e-5), cfg.size("n_mamba_heads")
    types = cfg.kinds(
        "layers_block_type", "layer_types", known=("linear_attention", "mamba", "hybrid"), length=count
    )
    if types is None:
        raise InputError(f"{cfg.where} has no layers_block_type")
    inner = cfg.size("mamba_expand") * hidden
    if inner % heads:
        raise InputError(f"{cfg.where}: n_mamba_heads does not divide the inner size {inner}", value=heads)

    def mamba_layer(prefix: str) -> Layer:
        mixer = mamba2_mixer(
            cfg,
            hidden=hidden,
            heads=heads,
            head_dim=inner // heads,
            groups=cfg.size("mamba_ngroups"),
            state=cfg.size("mamba_d_state"),
            kernel=cfg.size("mamba_d_conv"),
            eps=eps,
            bias=cfg.flag("add_bias_linear", default=False),
            source=f"{prefix}mamba",
        )
        return Layer((mixer,), None, (norm("attention_norm", hidden, f"{prefix}input_layernorm", eps=eps),))

    plain, behind = mamba_layer(""), mamba_layer("mamba_decoder.")
    block, layers, uses = _SharedBlock(cfg, hidden, eps), [], 0
    for kind in types:
        if kind == "hybrid":
            layers.append(block.layer(behind, uses))
            uses += 1
        else:
            layers.append(plain)
    spec = decoder(
        cfg,
        name,
        layers=layers,
        final_norm=norm("final_norm", hidden, "model.final_layernorm", eps=eps),
        tied_default=True,
    )
    return with_notes(spec, cfg)


ADAPTERS = {"jamba": jamba, "zamba2": zamba2}
