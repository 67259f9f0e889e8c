"""A decoder whose layers differ in little: the sizes, norms and windows that most families share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rooflens.errors import UnsupportedError
from rooflens.models.families.common import (
    HIDDEN,
    INTERMEDIATE,
    LAYERS,
    activation,
    attention,
    decoder,
    gated_mlp,
    head_sizes,
    norm,
)
from rooflens.models.families.config import Config
from rooflens.models.spec import Attention, DenseMlp, Layer, Mlp, ModelSpec, Norm, Rotary

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Sizes:
    """The sizes that every family reads first."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    def attention(self, rotary: Rotary | None, **fields: Any) -> Attention:
        """Grouped-query attention of these sizes; ``fields`` as in `common.attention`."""
        return attention(
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            rotary=rotary,
            **fields,
        )

    def gated(self, cfg: Config, *, bias: bool = False, **fields: Any) -> DenseMlp:
        """The gated feed-forward of ``intermediate_size``; ``fields`` as in `common.gated_mlp`."""
        fields.setdefault("activation", activation(cfg))
        fields.setdefault("intermediate", cfg.size(*INTERMEDIATE))
        return gated_mlp(hidden=self.hidden, bias=bias, **fields)


def read_sizes(cfg: Config, *, default_head_dim: int | None = None) -> Sizes:
    """Hidden size, layers and heads under all their spellings."""
    hidden, layers = cfg.size(*HIDDEN), cfg.layers(*LAYERS)
    return Sizes(hidden, layers, *head_sizes(cfg, hidden, default_head_dim=default_head_dim))


def pre_norms(
    hidden: int,
    *,
    eps: float,
    kind: Literal["rms", "layer"] = "rms",
    sources: tuple[str, str] = ("input_layernorm", "post_attention_layernorm"),
    **fields: Any,
) -> tuple[Norm, Norm]:
    """The norms on the inputs of the mixer and of the feed-forward."""
    attention_source, mlp_source = sources
    return (
        norm("attention_norm", hidden, attention_source, eps=eps, kind=kind, **fields),
        norm("mlp_norm", hidden, mlp_source, eps=eps, kind=kind, **fields),
    )


def query_key_norms(
    sizes: Sizes,
    *,
    eps: float,
    whole: bool = False,
    sources: tuple[str, str] = ("self_attn.q_norm", "self_attn.k_norm"),
    **fields: Any,
) -> tuple[Norm, Norm]:
    """Norms of q and k: over each head with one weight vector, or over all heads at once (``whole``)."""
    query, key = (sizes.heads, sizes.kv_heads) if whole else (1, 1)
    query_source, key_source = sources
    return (
        norm("q_norm", query * sizes.head_dim, query_source, eps=eps, **fields),
        norm("k_norm", key * sizes.head_dim, key_source, eps=eps, **fields),
    )


def layer_types(cfg: Config, layers: int, *, default: Callable[[int], bool]) -> list[bool]:
    """Which layers have a window: from ``layer_types``, else as ``default(index)`` says.

    Raises UnsupportedError for a layer type other than full and sliding attention.
    """
    types = cfg.items("layer_types", length=layers)
    if types is None:
        return [default(index) for index in range(layers)]
    for kind in types:
        if kind not in (FULL, SLIDING):
            raise UnsupportedError(
                f"{cfg.where}: layer_types has a type that this family does not know",
                value=kind,
                allowed=f"{FULL}, {SLIDING}",
            )
    return [kind == SLIDING for kind in types]


def windows(
    cfg: Config,
    layers: int,
    *,
    default: Callable[[int], bool] = lambda _: True,
    enabled: bool = True,
    assumed: int | None = None,
) -> list[int | None]:
    """The window of each layer, None where it attends to everything (also for ``sliding_window`` 0).

    ``assumed`` is the window that the family's own code takes where the field is missing; null means none.
    """
    if not enabled:
        window = None
    elif assumed and "sliding_window" not in cfg.fields:
        window = assumed
        cfg.note(f"sliding_window is not given: {assumed}, as the family's own code assumes")
    else:
        window = cfg.count("sliding_window") or None
    sliding = layer_types(cfg, layers, default=default)
    if window is None and cfg.get("layer_types") is not None and any(sliding):
        cfg.note("layer_types names sliding layers, but no window is in force: they attend to everything")
    return [window if slides else None for slides in sliding]


def stack(
    cfg: Config,
    name: str,
    *,
    attentions: Sequence[Attention],
    mlp: Mlp | Sequence[Mlp],
    layer_norms: tuple[Norm, ...],
    final_norm: Norm | None,
    parallel: bool = False,
    residual_scale: float = 1.0,
    **frame: Any,
) -> ModelSpec:
    """A decoder of one mixer and one feed-forward per layer; ``frame`` goes to `common.decoder`."""
    mlps = [mlp] * len(attentions) if not isinstance(mlp, Sequence) else mlp
    layers = [
        Layer((mixer,), block, layer_norms, parallel=parallel, residual_scale=residual_scale)
        for mixer, block in zip(attentions, mlps, strict=True)
    ]
    return decoder(cfg, name, layers=layers, final_norm=final_norm, **frame)
