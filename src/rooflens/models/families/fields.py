"""What every decoder's config says: sizes under all their spellings, element type, positions, activation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.families.config import Config
from rooflens.models.formats.base import dtype_name
from rooflens.models.spec import Rotary

# The spellings of the sizes that every decoder has.
HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
INTERMEDIATE = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "feed_forward_size")
MAX_CONTEXT = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "n_ctx",
    "max_sequence_length",
    "model_max_length",
)

DEFAULT_DTYPE = "bf16"


def compute_dtype(cfg: Config) -> str:
    """The element type that the config declares; bf16, said as assumed, where it declares none."""
    value = cfg.get("dtype", "torch_dtype")
    if value is None:
        cfg.note(f"the config names no dtype: {DEFAULT_DTYPE} is assumed")
        return DEFAULT_DTYPE
    return dtype_name(str(value), field=f"{cfg.where}: dtype")


def head_sizes(cfg: Config, hidden: int, *, default_head_dim: int | None = None) -> tuple[int, int, int]:
    """(query heads, KV heads, head size) of the usual fields; a missing KV count means MHA.

    ``default_head_dim`` is the family's own where it does not divide the hidden size among the heads.
    """
    heads = cfg.size(*HEADS)
    kv_heads = cfg.size(*KV_HEADS, default=heads)
    if heads % kv_heads:
        raise InputError(
            f"{cfg.where}: {heads} attention heads cannot share {kv_heads} KV heads evenly",
            value=kv_heads,
            allowed=f"a divisor of {heads}",
        )
    head_dim = cfg.optional_size("head_dim") or default_head_dim
    if head_dim is None:
        if hidden % heads:
            raise InputError(
                f"{cfg.where} gives no head_dim, and hidden_size does not divide into {heads} heads",
                value=hidden,
                allowed=f"a multiple of {heads}, or head_dim given",
            )
        head_dim = hidden // heads
    return heads, kv_heads, head_dim


def freeze(value: Any) -> Any:
    """Lists as tuples and objects as sorted pairs, so that a spec stays hashable."""
    if isinstance(value, Mapping):
        return tuple(sorted((str(key), freeze(item)) for key, item in value.items()))
    return tuple(freeze(item) for item in value) if isinstance(value, (list, tuple)) else value


def rotary(
    cfg: Config,
    head_dim: int,
    *,
    interleaved: bool = False,
    layer_type: str | None = None,
    theta: float = 10000.0,
    partial: float = 1.0,
    dim: int | None = None,
) -> Rotary:
    """Rotary settings from ``rope_theta``/``rope_scaling`` or the newer ``rope_parameters``.

    ``layer_type`` picks the entry where rope_parameters is nested per layer type. ``theta`` and
    ``partial`` are the family's defaults; ``dim`` is the rotated width where the config gives it outright.
    """
    parameters = cfg.section("rope_parameters", "rope_scaling")
    if parameters is not None and layer_type is not None and isinstance(parameters.get(layer_type), Mapping):
        parameters = parameters.section(layer_type)
    base = cfg.positive("rope_theta", "rotary_emb_base", default=theta)
    share = cfg.positive("partial_rotary_factor", "rotary_pct", "rope_pct", default=partial)
    scaling: tuple[tuple[str, Any], ...] = ()
    if parameters is not None:
        base = parameters.positive("rope_theta", default=base)
        share = parameters.positive("partial_rotary_factor", default=share)
        entries = {"rope_type" if key == "type" else key: value for key, value in parameters.fields.items()}
        if entries.get("rope_type", "default") != "default":
            # Phi-3 keeps the length before the extension beside the scaling, not in it.
            original = "original_max_position_embeddings"
            entries.setdefault(original, cfg.get(original))
            outside = ("rope_theta", "partial_rotary_factor")
            scaling = freeze({k: v for k, v in entries.items() if k not in outside and v is not None})
    width = int(head_dim * min(share, 2.0)) if dim is None else dim
    if width > head_dim:
        raise InputError(
            f"{cfg.where}: more features are rotated than a head has", value=width, allowed=f"1 to {head_dim}"
        )
    return Rotary(dim=width, theta=base, scaling=scaling, interleaved=interleaved)


def activation(cfg: Config, *names: str, default: str = "silu") -> str:
    """The activation in one spelling."""
    value = cfg.text(*(names or ("hidden_act", "hidden_activation", "activation_function")), default=default)
    known = {
        "swiglu": "silu",
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
    }
    return known.get(value, value)


def refuse(cfg: Config, field: str, *, why: str) -> UnsupportedError:
    """The error for a variant of a known family that is not covered."""
    return UnsupportedError(f"{cfg.where}: {field} {why}", value=cfg.get(field))
