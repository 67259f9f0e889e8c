"""What else ran on this machine while something was measured, from the kernel's own accounts.

Linux counts processor time per machine and per process; elsewhere only the load average is known.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooflens.measure.statistics import NOISY_SPREAD
from rooflens.units import format_share

BUSY_OTHERS_CORES = 0.1
"""Other processes above a tenth of one core disturb work that is split evenly over threads."""
STOLEN_SHARE = 0.01
"""Processor time that the hypervisor gave to others."""
BUSY_LOAD = 0.5
"""Load average before the start that means a busy machine, where nothing better is known."""
_LISTED_PROCESSES = 5
_OWN_CORES_LISTED = 0.02


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Processor seconds used so far: by all, stolen, idle, by this process, and by every process."""

    wall_s: float
    busy_s: float
    stolen_s: float
    total_s: float
    own_s: float
    processes: dict[int, tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Activity:
    """The neighbours of a measurement; None where the system does not say.

    ``others_cores`` is processor seconds of other processes per second, ``stolen_share`` of all time.
    """

    load_average: float | None
    others_cores: float | None = None
    stolen_share: float | None = None
    processes: tuple[tuple[str, float], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON; processes are named without arguments."""
        return {
            "load_average": self.load_average,
            "others_cores": self.others_cores,
            "stolen_share": self.stolen_share,
            "processes": [{"name": name, "cores": cores} for name, cores in self.processes],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Activity:
        """The inverse of ``to_dict``."""
        return cls(
            load_average=data["load_average"],
            others_cores=data["others_cores"],
            stolen_share=data["stolen_share"],
            processes=tuple((item["name"], item["cores"]) for item in data["processes"]),
        )


class ActivityMeter:
    """Watches the machine from its making to ``stop``; ``root`` lets tests read a captured tree."""

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._root = root
        self._load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        self._start = snapshot(root)

    def stop(self) -> Activity:
        """What others did since the meter was made."""
        end = snapshot(self._root)
        if self._start is None or end is None:
            return Activity(self._load)
        return between(self._start, end, load_average=self._load)


def snapshot(root: Path = Path("/")) -> Snapshot | None:
    """The processor accounts now; None where there is no /proc."""
    try:
        first = (root / "proc/stat").read_text().splitlines()[0]
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError, IndexError):
        return None
    fields = [int(field) for field in first.split()[1:9]]
    user, nice, system, idle, iowait, irq, softirq, stolen = [*fields, *[0] * (8 - len(fields))]
    own = os.times()
    return Snapshot(
        wall_s=time.monotonic(),
        busy_s=(user + nice + system + irq + softirq) * tick_s,
        stolen_s=stolen * tick_s,
        total_s=sum((user, nice, system, idle, iowait, irq, softirq, stolen)) * tick_s,
        own_s=own.user + own.system + own.children_user + own.children_system,
        processes=_processes(root, tick_s),
    )


def _processes(root: Path, tick_s: float) -> dict[int, tuple[str, float]]:
    found = {}
    for folder in (root / "proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        # The name stands in parentheses and may hold any character, those included.
        match = re.fullmatch(r"\d+ \((.*)\) (.*)", text.strip(), re.DOTALL)
        if match is None:
            continue
        fields = match[2].split()
        found[int(folder.name)] = (match[1], (int(fields[11]) + int(fields[12])) * tick_s)
    return found


def between(start: Snapshot, end: Snapshot, *, load_average: float | None) -> Activity:
    """The activity between two snapshots, this process's own left out."""
    wall = end.wall_s - start.wall_s
    if wall <= 0:
        return Activity(load_average)
    others = (end.busy_s - start.busy_s) - (end.own_s - start.own_s)
    total = end.total_s - start.total_s
    used = []
    for pid, (name, seconds) in end.processes.items():
        before = start.processes.get(pid, (name, 0.0))[1]
        cores = (seconds - before) / wall
        if pid != os.getpid() and cores >= _OWN_CORES_LISTED:
            used.append((name, cores))
    used.sort(key=lambda item: -item[1])
    return Activity(
        load_average=load_average,
        others_cores=max(0.0, others / wall),
        stolen_share=(end.stolen_s - start.stolen_s) / total if total > 0 else None,
        processes=tuple(used[:_LISTED_PROCESSES]),
    )


def noise(activity: Activity, spreads: Sequence[tuple[str, float]] = ()) -> list[str]:
    """Why figures taken meanwhile deserve less trust: one sentence each, with number and next action.

    ``spreads`` are (name, (p90 - p10) / median) of the measurements.
    """
    told = []
    if activity.others_cores is not None:
        if activity.others_cores > BUSY_OTHERS_CORES:
            who = ", ".join(f"{name} {cores:.2f}" for name, cores in activity.processes)
            told.append(
                f"other processes used {activity.others_cores:.2f} cores meanwhile"
                + (f" ({who})" if who else "")
                + ": stop them and measure again"
            )
    elif activity.load_average is not None and activity.load_average > BUSY_LOAD:
        told.append(
            f"the load average was {activity.load_average:.2f} at the start: "
            "stop other programs and measure again"
        )
    if activity.stolen_share is not None and activity.stolen_share > STOLEN_SHARE:
        told.append(
            f"the hypervisor gave {format_share(activity.stolen_share)} of the processor time to other "
            "virtual machines: measure again at a quieter time"
        )
    wide = sorted((item for item in spreads if item[1] > NOISY_SPREAD), key=lambda item: -item[1])
    if wide:
        name, spread = wide[0]
        told.append(
            f"{len(wide)} of {len(spreads)} figures vary by more than {format_share(NOISY_SPREAD)} "
            f"between p10 and p90 (most: {name}, {format_share(spread)}): take them as a range"
        )
    return told
