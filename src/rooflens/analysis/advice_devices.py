"""Techniques of devices: where experts and weights are, other devices, other layouts, pools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rooflens.analysis import techniques as what_if
from rooflens.analysis.advice_case import LEAST_GAIN, Advice, Case
from rooflens.analysis.parallelism import Layout
from rooflens.errors import RooflensError
from rooflens.hardware.catalogue import devices
from rooflens.models.spec import MixtureOfExperts
from rooflens.units import format_bytes, format_seconds

_WIDEST, _WORTH = 32, 1.1


def experts(case: Case) -> Advice | None:
    layout = case.work.layout
    if not _sparse(case) or layout.devices == 1 or layout.ep > 1:
        return None
    after = case.priced(what_if.layout_of(replace(layout, ep=layout.tp * layout.dp))(case.base))
    made = case.made("expert_parallel", f"ep {layout.tp * layout.dp}", after, "experts")
    return made if made.gains else replace(made, why="experts.none")


def host_experts(case: Case) -> Advice | None:
    """Routed experts in the host's memory: what llama.cpp's --n-cpu-moe and KTransformers do."""
    if not _sparse(case):
        return None
    after = case.priced(what_if.with_host_experts(case.base))
    if case.runs:
        loss = f"{after.tpot_s / case.now.tpot_s:.1f}"
        saved = format_bytes(case.now.memory_bytes - after.memory_bytes)
        return case.none("host_experts", "host_experts.none", loss=loss, bytes=saved)
    if after.fits is False:
        return None
    saved = format_bytes(case.now.memory_bytes - after.memory_bytes)
    made = case.made(
        "host_experts",
        "routed experts in the host's memory",
        after,
        "host_experts",
        bytes=saved,
        tpot=format_seconds(after.tpot_s),
    )
    return replace(made, decode_gain=None, tpot_gain=None, prefill_gain=None)


def offload(case: Case) -> Advice | None:
    """Weights that do not fit in the host's memory."""
    return _offloaded(case, "offload", "to the host", on_drive=False)


def nvme(case: Case) -> Advice | None:
    """Weights that do not fit on the machine's drive."""
    return _offloaded(case, "nvme_offload", "to a drive", on_drive=True)


def _offloaded(case: Case, technique: str, where: str, *, on_drive: bool) -> Advice | None:
    missing = case.plan.ledger.deficit_bytes * case.work.layout.devices
    if not missing:
        return case.none(technique, f"{technique}.none")
    after = case.priced(what_if.offloading(case.base, missing, on_drive=on_drive))
    if after.fits is False:
        return None
    made = case.made(
        technique,
        f"{format_bytes(missing)} of weights {where}",
        after,
        technique,
        tpot=format_seconds(after.tpot_s),
        bytes=format_bytes(missing),
    )
    return replace(made, decode_gain=None, tpot_gain=None, prefill_gain=None)


def _sparse(case: Case) -> bool:
    return any(isinstance(group.layer.mlp, MixtureOfExperts) for group in case.plan.spec.groups)


def device(case: Case) -> Advice | None:
    """The nearest device of the same vendor and kind with more bandwidth and no less of anything else."""
    own = case.plan.device
    if own.bandwidth_bytes_per_s is None or own.vendor is None:
        return None
    dtype = case.plan.rates.compute_dtype
    faster = sorted(
        (
            one
            for one in devices()
            if one.vendor == own.vendor
            and one.kind == own.kind
            and (one.bandwidth_bytes_per_s or 0) > 1.15 * own.bandwidth_bytes_per_s
            and (one.memory_bytes or 0) >= (own.memory_bytes or 0)
            and (one.year or 0) >= (own.year or 0)
            and one.peaks_flops_per_s.get(dtype, 0.0) >= own.peaks_flops_per_s.get(dtype, 0.0)
        ),
        key=lambda one: (one.bandwidth_bytes_per_s or 0, -(one.year or 0)),
    )
    for one in faster[:8]:
        try:
            after = case.priced(what_if.device_of(one)(case.base))
        except RooflensError:
            continue
        return case.made(
            "faster_device",
            f"device {one.id}",
            after,
            "device",
            device=one.name,
            bandwidth=f"{one.bandwidth() / own.bandwidth():.2f}",
        )
    return case.none("faster_device", "device.none", device=own.name)


def layout(case: Case) -> Advice | None:
    layout = case.work.layout
    doubled = replace(layout, tp=layout.tp * 2)
    after = case.priced(what_if.layout_of(doubled)(case.base))
    per_device = after.tokens_per_s / case.now.tokens_per_s / 2
    return case.made(
        "tensor_parallel",
        f"tp {doubled.tp}",
        after,
        "layout",
        per_device=f"{per_device:.2f}",
        until=_ways_until(case),
    )


def _ways_until(case: Case) -> str:
    """The first tensor parallel degree from which doubling it again gains a token less than a tenth."""
    ways, before_s = case.work.layout.tp, case.now.tpot_s
    while ways < _WIDEST:
        ways *= 2
        try:
            after_s = case.priced(what_if.layout_of(replace(case.work.layout, tp=ways))(case.base)).tpot_s
        except RooflensError:
            break  # heads or features do not divide any further
        if before_s / after_s < _WORTH:
            return f"{ways // 2}"
        before_s = after_s
    return f"{ways}+"


def other_layout(case: Case) -> Advice | None:
    """The same devices cut another way: the layout with the most throughput, or the fastest token if none."""
    own = case.work.layout
    if own.devices == 1:
        return None
    found = []
    for other in _same_devices(own, sparse=_sparse(case)):
        try:
            after = case.priced(what_if.layout_of(other)(case.base))
        except RooflensError:
            continue
        if after.fits is not False or not case.runs:
            name = ", ".join(f"{key} {size}" for key, size in vars(other).items() if size > 1)
            found.append(case.made("other_layout", name, after, "other_layout", now=_layout_name(own)))
    best = max(found, key=lambda one: one.rank, default=None)
    if best is None or not best.gains or best.rank < LEAST_GAIN:
        return case.none("other_layout", "other_layout.none", now=_layout_name(own))
    return best


def _layout_name(layout: Layout) -> str:
    return ", ".join(f"{key} {size}" for key, size in vars(layout).items() if size > 1)


def _same_devices(own: Layout, *, sparse: bool) -> Iterator[Layout]:
    """Tensor, pipeline and data parallel degrees with the same product, experts shared or not."""
    for tp in (1, 2, 4, 8, 16):
        for pp in (1, 2, 4):
            if own.devices % (tp * pp):
                continue
            dp = own.devices // (tp * pp)
            for ep in {1, tp * dp} if sparse else {1}:
                layout = Layout(tp, pp, ep, dp)
                if layout != own:
                    yield layout


def split(case: Case) -> Advice | None:
    if case.work.batch == 1:
        return case.none("phase_split", "split.none")
    after = case.priced(what_if.split_phases(case.base))
    share = 1 - after.tpot_s / case.now.tpot_s
    transfer = format_seconds(max(0.0, after.ttft_s - case.now.ttft_s))
    made = case.made(
        "phase_split",
        "a second pool for prefills",
        after,
        "split",
        share=f"{share:.0%}",
        transfer=transfer,
    )
    return replace(made, memory_saved_bytes=0, assumed=True)
