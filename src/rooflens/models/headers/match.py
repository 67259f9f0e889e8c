"""What a checkpoint holds, set against what its model needs: which tensors are which slots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rooflens.models.checkpoint.tensor import TensorInfo
from rooflens.models.headers.slots import Slot

TowerKey = tuple[str, str]


@dataclass(slots=True)
class Holding:
    """Tensors that hold some slots together: mostly one of each.

    main: where the weights are. beside: scales, zero points and the like.
    """

    slots: list[Slot]
    main: tuple[TensorInfo, ...]
    beside: list[TensorInfo] = field(default_factory=list)

    @property
    def tensors(self) -> list[TensorInfo]:
        """All of them."""
        return [*self.main, *self.beside]

    @property
    def elements(self) -> int:
        """Weights that the slots have, whatever they are packed in."""
        return sum(slot.elements for slot in self.slots)

    @property
    def bytes(self) -> int:
        """Stored bytes, scales and zero points included."""
        return sum(tensor.bytes for tensor in self.main) + sum(tensor.bytes for tensor in self.beside)


@dataclass
class Match:
    """Every slot found or missing, every tensor used or sorted out.

    tables: computed when a model is made, nothing trained (rotary frequencies, causal masks, cache scales).
    predictors: layers that predict further tokens. towers: what is no part of the text decoder, by the kind
        and the name of its component ("" where the config describes none).
    duplicates: a tied head's own copy of the table. unknown: tensors that the model does not use.
    """

    holdings: list[Holding] = field(default_factory=list)
    missing: list[Slot] = field(default_factory=list)
    tables: list[TensorInfo] = field(default_factory=list)
    predictors: list[TensorInfo] = field(default_factory=list)
    towers: dict[TowerKey, list[TensorInfo]] = field(default_factory=dict)
    adapters: list[TensorInfo] = field(default_factory=list)
    duplicates: list[TensorInfo] = field(default_factory=list)
    unknown: list[TensorInfo] = field(default_factory=list)

    def used(self) -> Iterable[TensorInfo]:
        """The tensors of the decoder."""
        return (tensor for holding in self.holdings for tensor in holding.tensors)
