"""From the bound to the likely: what a step takes on real kernels and engines, as a range.

The bound says what is impossible; the estimate says what is likely, and low to high is an 80 % interval:
of ten measurements by others on this kind of device, eight lie within. Formulas are in ``kernels``,
fitted figures in ``calibration``; how well they predict is in docs/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import exp
from typing import TYPE_CHECKING

from rooflens.analysis.calibration import (
    MEASURED,
    NETWORK,
    EngineRates,
    LinkRates,
    calibration,
    device_class,
    engine_class,
    format_class,
    link_class,
)
from rooflens.analysis.communication import DEFAULT_NETWORK, Network, Traffic
from rooflens.analysis.kernels import KernelRates, load_seconds, loads, reduce_seconds, step_seconds
from rooflens.analysis.numeric import Quantity, maximum
from rooflens.analysis.roofline import Roof
from rooflens.analysis.step import Op
from rooflens.hardware.device import Device
from rooflens.models.spec import ModelSpec

if TYPE_CHECKING:
    from rooflens.analysis.own_runs import OwnRuns

DECODE_1, DECODE, PREFILL, SERVED_TTFT = "decode, batch 1", "decode, batched", "prefill", "TTFT, queued"


@dataclass(frozen=True)
class Range:
    """Low, likely and high of one figure; the unit is the figure's own."""

    low: Quantity
    mid: Quantity
    high: Quantity

    def to_dict(self) -> dict[str, Quantity]:
        """As JSON."""
        return {"low": self.low, "mid": self.mid, "high": self.high}


@dataclass(frozen=True)
class Setting:
    """What applies to a model's format on a device under an engine.

    ``widths`` are logarithms: what to add to that of the likely time for low and high, by kind of figure.
    ``source`` says where the figures come from.
    """

    kernels: KernelRates
    engine: EngineRates
    link: LinkRates
    network: LinkRates
    widths: dict[str, tuple[float, float]]
    source: str
    shifts: dict[str, float]

    def around(self, mid: Quantity, kind: str, *, floor: Quantity = 0.0) -> Range:
        """The interval around a likely time, never under ``floor`` (the bound)."""
        low, high = self.widths[kind]
        mid = maximum(mid * exp(self.shifts.get(kind, 0.0)), floor)
        return Range(maximum(mid * exp(low), floor), mid, mid * exp(high))


def setting_for(spec: ModelSpec, device: Device, engine: str, own: OwnRuns | None = None) -> Setting:
    """The figures for a model's format, a device and an engine; those of a kind where it has none of its own.

    A device that was probed has its own bandwidth and peaks, of which kernels reach more than of a data
    sheet's. ``own`` measured runs shift and narrow the range where they are of this device.
    """
    fitted = calibration()
    kind = device_class(device)
    engine_kind = engine_class(engine, kind)
    kernels = fitted.kernel_rates(kind, engine_kind, format_class(spec))
    widths = fitted.widths()
    source = f"published measurements of {kind} devices"
    if device.bandwidth_evidence == "measured":
        kernels = _probed(kernels, fitted.table[MEASURED], fitted.table["devices"][kind])
        share = fitted.table[MEASURED]["width"]
        widths = {name: (low * share, high * share) for name, (low, high) in widths.items()}
        source = "the device's own probe"
    shifts: dict[str, float] = {}
    if own is not None:
        shifts, widths, source = own.apply(device, engine, widths, source)
    return Setting(
        kernels,
        fitted.engine_rates(engine_kind),
        fitted.link_rates(link_class(device)),
        fitted.link_rates(NETWORK),
        widths,
        source,
        shifts,
    )


def _probed(rates: KernelRates, probed: dict[str, float], of_class: dict[str, float]) -> KernelRates:
    """Shares of what a probe measured instead of shares of the data sheet."""
    bandwidth = probed["bandwidth"] / of_class["bandwidth"]
    compute = probed["compute"] / of_class["compute"]
    return replace(
        rates,
        bandwidth=rates.bandwidth * bandwidth,
        expert_bandwidth=rates.expert_bandwidth * bandwidth,
        kv_bandwidth=rates.kv_bandwidth * bandwidth,
        compute=rates.compute * compute,
        expert_compute=rates.expert_compute * compute,
        attention_compute=rates.attention_compute * compute,
    )


def estimate_s(
    ops: Iterable[Op],
    roof: Roof,
    setting: Setting,
    *,
    tokens: Quantity,
    sequences: Quantity,
    eager: bool,
    chunks: Quantity = 1,
    traffic: Traffic | None = None,
    network: Network | None = None,
) -> Quantity:
    """Likely seconds of a step: its operators one after the other, the collectives, the host.

    ``tokens`` go through the layers; ``eager`` steps (prefill) start their kernels one by one. A step cut
    into ``chunks`` reads the weights once in each. ``traffic`` is what the device sends in it.
    Every token count may be an array.
    """
    kernels = setting.kernels
    busy: Quantity = 0.0
    launches = 0
    for load in loads(ops, roof, tokens=tokens, chunks=chunks):
        launches += load.count
        busy = busy + load_seconds(load, kernels) * load.count
    engine = setting.engine
    return step_seconds(
        busy,
        launches=launches * chunks,
        eager=1 if eager else 0,
        enqueue_s=engine.enqueue_s,
        host_s=engine.host_s * chunks,
        host_per_sequence_s=engine.host_per_sequence_s,
        sequences=sequences,
        communication_s=0.0 if traffic is None else _sent_s(traffic, roof, setting, network, chunks),
    )


def _sent_s(
    sent: Traffic, roof: Roof, setting: Setting, network: Network | None, chunks: Quantity
) -> Quantity:
    """Seconds of a step's collectives: those within the node, then those between nodes."""
    total: Quantity = 0.0
    ways = (
        (sent.link_bytes, sent.link_starts, sent.local, roof.link_bytes_per_s, setting.link),
        (
            sent.network_bytes,
            sent.network_starts,
            sent.nodes,
            (network or DEFAULT_NETWORK).bytes_per_s_per_device,
            setting.network,
        ),
    )
    for sent_bytes, starts, devices, rate, reached in ways:
        if rate and devices > 1:
            total = total + reduce_seconds(
                reduces=starts * chunks,
                sent_s=sent_bytes / rate,
                devices=devices,
                share=reached.share,
                latency_s=reached.latency_s,
                crowding=reached.crowding,
            )
    return total
