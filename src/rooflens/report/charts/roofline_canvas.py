"""What every part of a roofline chart draws on: scales, the room that is taken, layers back to front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rooflens.analysis.points import RooflineView
from rooflens.report.charts.geometry import Box, LogScale, Point, Segment
from rooflens.report.charts.theme import LABEL_SIZE, Theme, require_altair, ticks
from rooflens.report.rooflines import ChartPoint
from rooflens.report.words import Words
from rooflens.units import format_flops_per_s, format_rate

WIDTH, HEIGHT = 760, 440


class RooflineCanvas:
    """One chart being put together. ``taken`` is the room that words must keep off."""

    def __init__(
        self, view: RooflineView, points: Sequence[ChartPoint], say: Words, theme: Theme, caches: bool
    ) -> None:
        self.alt = require_altair()
        self.view, self.points, self.say, self.theme = view, points, say, theme
        self.peak, self.bandwidth = view.peak_flops_per_s, view.bandwidth_bytes_per_s
        self.ridge = view.ridge_flops_per_byte
        self.caches = [
            (level.name, level.bandwidth_bytes_per_s)
            for level in view.device.memory_levels()
            if caches
            and level.bandwidth_bytes_per_s is not None
            and level.bandwidth_bytes_per_s > 1.05 * self.bandwidth
        ]
        self.spec = self._spec_roof(view)
        self.x, self.y = self._scales()
        self.taken: list[Box] = []
        self.layers: list[Any] = []

    @staticmethod
    def _spec_roof(view: RooflineView) -> tuple[float, float] | None:
        """The vendor's (peak, bandwidth) beside a measured roof; None where there is none to compare."""
        vendor = view.device.spec
        if vendor is None or vendor.bandwidth_bytes_per_s is None:
            return None
        peak = vendor.peaks_flops_per_s.get(view.compute_dtype)
        return None if peak is None else (peak, vendor.bandwidth_bytes_per_s)

    def _scales(self) -> tuple[LogScale, LogScale]:
        intensities = [point.intensity_flops_per_byte for point in self.points]
        left = min([self.ridge / 300, *(value / 2.2 for value in intensities)])
        right = max([self.ridge * 20, *(value * 2.5 for value in intensities)])
        lowest = [self.bandwidth * left]
        lowest += [(point.low_flops_per_s or point.flops_per_s) / 2.5 for point in self.points]
        highest = max(self.peak, self.spec[0] if self.spec else 0.0)
        return (
            LogScale(left, right, 0.0, float(WIDTH)),
            LogScale(min(lowest), highest * 3.2, float(HEIGHT), 0.0),
        )

    # -- coordinates

    def at(self, intensity: float, rate: float) -> Point:
        """Pixels of a place on the chart."""
        return self.x.pixel(intensity), self.y.pixel(rate)

    def attainable(self, intensity: float) -> float:
        """The roof over an intensity."""
        return min(self.peak, intensity * self.bandwidth)

    def data(self, rows: list[dict[str, Any]]) -> Any:
        """Rows as the chart's inline data."""
        return self.alt.Chart(self.alt.Data(values=rows))

    def axes(self) -> dict[str, Any]:
        """The x and y encodings that all layers share."""
        alt = self.alt
        return {
            "x": alt.X(
                "x:Q",
                title=self.say("chart.intensity"),
                scale=alt.Scale(type="log", domain=[self.x.low, self.x.high], nice=False),
                axis=alt.Axis(**ticks(self.x.ticks(), format_rate)),
            ),
            "y": alt.Y(
                "y:Q",
                title=self.say("chart.rate"),
                scale=alt.Scale(type="log", domain=[self.y.low, self.y.high], nice=False),
                axis=alt.Axis(**ticks(self.y.ticks(), format_flops_per_s)),
            ),
        }

    def lines(self, segments: Sequence[Segment], **mark: Any) -> None:
        """Straight lines between places in pixels."""
        rows = [
            {
                "x": self.x.value(x1),
                "y": self.y.value(y1),
                "x2": self.x.value(x2),
                "y2": self.y.value(y2),
            }
            for (x1, y1), (x2, y2) in segments
        ]
        layer = self.data(rows).mark_rule(**mark).encode(**self.axes(), x2="x2:Q", y2="y2:Q")
        self.layers.append(layer)

    def words(self, spots: Sequence[tuple[Point, str]], **mark: Any) -> None:
        """Text at places in pixels."""
        rows = [{"x": self.x.value(x), "y": self.y.value(y), "text": text} for (x, y), text in spots]
        mark = {"fontSize": LABEL_SIZE, "lineBreak": "\n", **mark}
        self.layers.append(self.data(rows).mark_text(**mark).encode(**self.axes(), text="text:N"))

    # -- layers
