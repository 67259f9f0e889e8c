"""What a checkpoint's own quantisation config says, once read: a format for every matrix."""

from __future__ import annotations

from dataclasses import dataclass

from rooflens.models.formats.base import WeightFormat
from rooflens.models.formats.matching import Patterns
from rooflens.models.formats.rewrite import BLOCK_ROLES, Chooser, Matrix, Role


@dataclass(frozen=True)
class Quantization:
    """``choose`` gives each matrix its format, ``per_layer`` says that it looks at the layer's number.

    ``kv_scheme`` is the cache type that the checkpoint carries scales for: reported, not applied.
    ``head_copy`` is the format of a second, quantised copy of a tied table.
    """

    name: str
    choose: Chooser
    per_layer: bool = True
    kv_scheme: str | None = None
    head_copy: WeightFormat | None = None
    notes: tuple[str, ...] = ()
    evidence: str = "exact"


def blocks_except(
    layout: WeightFormat, skipped: Patterns, *, roles: frozenset[Role] = BLOCK_ROLES
) -> Chooser:
    """The linears of the layers in ``layout``, but for those that ``skipped`` names."""

    def choose(matrix: Matrix) -> WeightFormat | None:
        return None if matrix.role not in roles or skipped.match(matrix) else layout

    return choose
