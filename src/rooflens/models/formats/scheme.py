"""What a quantisation tool does to a whole model: which matrices it converts, and to what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rooflens.models.formats.base import WeightFormat
from rooflens.models.formats.gguf_recipes import Recipe
from rooflens.models.formats.rewrite import BLOCK_ROLES, Matrix, Role

Evidence = Literal["exact", "assumed"]


@dataclass(frozen=True)
class FormatScheme:
    """A named way to store a model's weights, as one tool writes them.

    ``formats`` gives a format by role; a role that is not in it keeps the model's own type, as does a
    matrix whose sizes are no multiple of ``in_multiple`` and ``out_multiple``. ``dtype`` replaces the
    model's own type (plain formats), ``vector_dtype`` that of norms and biases. ``recipe`` is GGUF's way
    to choose by tensor and layer instead. ``splits_tied_head`` marks tools that store a quantised copy
    of a tied table as the head, ``ideal`` formats that no tool writes. ``evidence`` is assumed where the
    tool decides by data not known here.
    """

    name: str
    about: str
    source: str
    formats: Mapping[Role, WeightFormat] = field(default_factory=dict, hash=False)
    dtype: str | None = None
    vector_dtype: str | None = None
    in_multiple: int = 1
    out_multiple: int = 1
    recipe: Recipe | None = None
    splits_tied_head: bool = False
    ideal: bool = False
    evidence: Evidence = "exact"

    def choose(self, matrix: Matrix) -> WeightFormat | None:
        """The format of one matrix by its role and sizes."""
        if matrix.in_features % self.in_multiple or matrix.out_features % self.out_multiple:
            return None
        return self.formats.get(matrix.role)


def in_blocks(layout: WeightFormat) -> dict[Role, WeightFormat]:
    """The usual choice: every linear of the layers, but not routers, head, tables and what is outside."""
    return dict.fromkeys(BLOCK_ROLES, layout)
