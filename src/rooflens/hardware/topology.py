"""Which of this machine's CPUs share a core, and which memory is near them: Linux's /sys and /proc.

``root`` lets tests read a captured tree. Where the system does not say, each CPU counts as a core, and all
memory as one node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rooflens.units import KIB

_FREE = ("MemFree", "FilePages")
"""What a node can give: what nobody uses, and what the page cache gives back."""
_LAST_CPU_FIELD = 39
"""Of /proc/self/stat, counted from 1 as its manual page does."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """One CPU as the scheduler counts them; those of one ``core`` share its arithmetic units."""

    number: int
    core: tuple[str, str]
    node: int


@dataclass(frozen=True, slots=True)
class Topology:
    """The CPUs that this process may use, the node that it runs on, and each node's free memory in bytes."""

    cpus: tuple[Cpu, ...]
    here: int
    free_bytes: dict[int, int]

    @property
    def nodes(self) -> tuple[int, ...]:
        """The memory nodes of the CPUs."""
        return tuple(sorted({cpu.node for cpu in self.cpus}))

    def one_of_each_core(self) -> tuple[Cpu, ...]:
        """The first CPU of each core, node by node."""
        first: dict[tuple[str, str], Cpu] = {}
        for cpu in self.cpus:
            first.setdefault(cpu.core, cpu)
        return tuple(sorted(first.values(), key=lambda cpu: (cpu.node, cpu.number)))

    def of_node(self, node: int) -> tuple[int, ...]:
        """The numbers of the CPUs of a node."""
        return tuple(cpu.number for cpu in self.cpus if cpu.node == node)


def read_topology(*, root: Path = Path("/")) -> Topology:
    """The topology of what this process may use; never raises."""
    numbers = allowed_cpus(list(cpu_numbers(root)), root) or list(range(os.cpu_count() or 1))
    node_of = {cpu: node for node, cpus in _nodes(root) for cpu in cpus}
    cpus = tuple(
        Cpu(number, core_of(root, number) or ("", f"cpu{number}"), node_of.get(number, 0))
        for number in numbers
    )
    nodes = sorted({cpu.node for cpu in cpus})
    here = node_of.get(_last_cpu(root), nodes[0])
    free = {node: size for node in nodes if (size := _free_bytes(root, node)) is not None}
    return Topology(cpus, here if here in nodes else nodes[0], free)


def cpu_numbers(root: Path) -> Iterator[int]:
    """The machine's CPUs, in the order of their names."""
    try:
        entries = sorted((root / "sys/devices/system/cpu").iterdir())
    except OSError:
        return
    for entry in entries:
        if match := re.fullmatch(r"cpu(\d+)", entry.name):
            yield int(match[1])


def allowed_cpus(every: list[int], root: Path) -> list[int]:
    """CPUs this process may run on; a captured tree allows all of its own."""
    if root != Path("/") or not hasattr(os, "sched_getaffinity"):
        return sorted(every)
    return sorted(os.sched_getaffinity(0))


def core_of(root: Path, cpu: int) -> tuple[str, str] | None:
    """(socket, core) of a CPU; None where the system hides it."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    package, core = _text(topology / "physical_package_id"), _text(topology / "core_id")
    # Some virtual machines answer -1.
    return (package, f"{_text(topology / 'die_id')}:{core}") if core.isdigit() else None


def numbers_in(text: str) -> list[int]:
    """The numbers of a list like ``0-3,8``. Raises ValueError for another text."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def _nodes(root: Path) -> Iterable[tuple[int, list[int]]]:
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        try:
            yield int(folder.name.removeprefix("node")), numbers_in(_text(folder / "cpulist"))
        except ValueError:
            continue


def _free_bytes(root: Path, node: int) -> int | None:
    text = _text(root / f"sys/devices/system/node/node{node}/meminfo")
    found = dict(re.findall(r"^Node \d+ (\w+):\s+(\d+) kB", text, re.MULTILINE))
    known = [int(found[name]) for name in _FREE if name in found]
    return sum(known) * KIB if known else None


def _last_cpu(root: Path) -> int:
    """The CPU that this process ran on last; -1 where the system does not say."""
    # The name of the program, in parentheses, may hold anything; the third field follows it.
    fields = _text(root / "proc/self/stat").rpartition(")")[2].split()
    place = _LAST_CPU_FIELD - 3
    return int(fields[place]) if len(fields) > place and fields[place].isdigit() else -1


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
