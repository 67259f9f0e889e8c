"""Several plans side by side: devices, weight formats, or both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooflens.analysis.plan import Plan
from rooflens.display import Displayed
from rooflens.errors import RooflensError
from rooflens.hardware.device import Device


@dataclass(frozen=True)
class Cell:
    """One combination: its plan, or the reason why there is none."""

    device: Device
    weights: str
    plan: Plan | None
    error: RooflensError | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        result: dict[str, Any] = {"device": self.device.id, "weights": self.weights}
        result["plan"] = None if self.plan is None else self.plan.to_dict()
        result["error"] = None if self.error is None else self.error.to_dict()["error"]
        return result


@dataclass(frozen=True)
class Comparison(Displayed):
    """The combinations in the order asked: devices, then formats."""

    cells: tuple[Cell, ...]

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that could be made."""
        return tuple(cell.plan for cell in self.cells if cell.plan is not None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"schema": "rooflens.compare/1", "cells": [cell.to_dict() for cell in self.cells]}
