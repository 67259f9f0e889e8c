"""Rotary positions: frequencies under every scaling rule, and the table of cosines and sines."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.spec import Rotary

SCALINGS = ("linear", "llama3", "yarn", "longrope")
#: Rows the table starts with; it doubles when a longer sequence comes.
_FIRST_ROWS = 512


def inverse_frequencies(
    rotary: Rotary, *, context: int | None, limit: int | None = None
) -> tuple[Tensor, float]:
    """(frequencies [dim / 2] in fp32, factor on cosines and sines) of a rotary embedding.

    Plain: theta ** (-2 i / dim). ``context`` (the longest sequence to be run) decides between the short
    and long factors of longrope, once for all sequences, so that cached keys fit together; ``limit`` (the
    model's own) over the original context is longrope's factor where the config has none.
    Sources: Llama 3.1's and Phi-3's reference code; YaRN, arXiv 2309.00071, equations 17 to 25.
    Raises UnsupportedError for another rule and InputError for one that lacks a number.
    """
    exponents = torch.arange(0, rotary.dim, 2, dtype=torch.int64).float() / rotary.dim
    plain = 1.0 / rotary.theta**exponents
    if not rotary.scaling:
        return plain, 1.0
    rule = _Rule(dict(rotary.scaling))
    if rule.name == "linear":
        return plain / rule.number("factor"), 1.0
    if rule.name == "llama3":
        return _llama3(plain, rule), 1.0
    if rule.name == "yarn":
        return _yarn(plain, rotary, rule)
    if rule.name == "longrope":
        return _longrope(plain, rule, context, limit)
    raise UnsupportedError("this rotary scaling is not covered", value=rule.name, allowed=", ".join(SCALINGS))


class _Rule:
    """A config's scaling entry."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.name = str(fields.get("rope_type"))

    def number(self, field: str, default: float | None = None) -> float:
        value = self.fields.get(field)
        if value is None:
            value = default
        if value is None:
            raise InputError(f"rotary scaling '{self.name}' lacks {field}")
        return float(value)


def _llama3(plain: Tensor, rule: _Rule) -> Tensor:
    """Long wavelengths divided by ``factor``, short ones kept, a linear blend between."""
    factor, original = rule.number("factor"), rule.number("original_max_position_embeddings")
    low, high = rule.number("low_freq_factor"), rule.number("high_freq_factor")
    turns = original * plain / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * plain / factor + blend * plain


def _yarn(plain: Tensor, rotary: Rotary, rule: _Rule) -> tuple[Tensor, float]:
    """Dimensions that turn often are kept, those that turn rarely divided by ``factor``, a ramp between."""
    original = rule.number("original_max_position_embeddings")
    factor = rule.number("factor")

    def magnitude(scale: float, by: float = 1.0) -> float:
        return 1.0 if scale <= 1 else 0.1 * by * math.log(scale) + 1.0

    if rule.fields.get("attention_factor") is not None:
        attention = rule.number("attention_factor")
    elif rule.fields.get("mscale") and rule.fields.get("mscale_all_dim"):
        attention = magnitude(factor, rule.number("mscale"))
        attention /= magnitude(factor, rule.number("mscale_all_dim"))
    else:
        attention = magnitude(factor)

    def dimension(turns: float) -> float:
        return rotary.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rotary.theta))

    low, high = dimension(rule.number("beta_fast", 32.0)), dimension(rule.number("beta_slow", 1.0))
    if rule.fields.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary.dim - 1)
    # A ramp of no width would divide by zero; the reference widens it by this much.
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(rotary.dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / factor * ramp + plain * (1 - ramp), attention


def _longrope(plain: Tensor, rule: _Rule, context: int | None, limit: int | None) -> tuple[Tensor, float]:
    """Every dimension divided by its own factor, from the short or the long list."""
    original = rule.number("original_max_position_embeddings")
    extended = context is None or context > original
    factors = rule.fields.get("long_factor" if extended else "short_factor")
    if factors is None or len(factors) != len(plain):
        raise InputError("rotary scaling 'longrope' needs one factor per pair of features", value=factors)
    attention = rule.fields.get("attention_factor")
    if attention is None:
        factor = rule.number("factor", None if limit is None else limit / original)
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return plain / torch.tensor(factors, dtype=torch.float32), float(attention)


class RotaryTable(nn.Module):
    """Cosines and sines by position, grown as needed; one for all layers with the same rotary settings.

    The sines carry the sign of the half they multiply: y = x cos + swap(x) sin, where swap exchanges the
    two features of a pair.
    """

    def __init__(self, rotary: Rotary, *, context: int | None, limit: int | None = None) -> None:
        super().__init__()
        self.rotary = rotary
        self.frequencies, self.factor = inverse_frequencies(rotary, context=context, limit=limit)
        self._cos = torch.empty(0)
        self._sin = torch.empty(0)

    def _grow(self, rows: int, like: Tensor) -> None:
        position = torch.arange(rows, dtype=torch.float32, device=like.device)
        angles = position[:, None] * self.frequencies.to(like.device)
        cos, sin = angles.cos() * self.factor, angles.sin() * self.factor
        if self.rotary.interleaved:
            cos = cos.repeat_interleave(2, dim=-1)
            sin = torch.stack((-sin, sin), dim=-1).flatten(-2)
        else:
            cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        self._cos, self._sin = cos[:, None].to(like.dtype), sin[:, None].to(like.dtype)

    def forward(self, positions: Tensor, longest: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin) [tokens, 1, dim] of ``positions``, all below ``longest``, in the type of ``like``."""
        if self._cos.shape[0] < longest or self._cos.dtype != like.dtype:
            rows = max(_FIRST_ROWS, 1 << (longest - 1).bit_length())
            self._grow(rows, like)
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)
