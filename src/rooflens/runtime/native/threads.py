"""How many threads run a step, where they may run, and why."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from rooflens.errors import InputError
from rooflens.hardware.topology import Cpu, Topology, read_topology

#: 1: each thread stays on a core of its own, for machines that nothing else uses. 0: threads go where the
#: system puts them, on several memory nodes too.
PIN_VARIABLE = "ROOFLENS_PIN"
#: Where one of these is set, OpenMP places its threads, and Rooflens leaves them there.
PLACING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_THREADS_VARIABLE = "OMP_NUM_THREADS"

_asked: int | None = None
#: torch's threads before ``take`` made fewer of them, and after.
_reduced: tuple[int, int] | None = None


@dataclass(frozen=True)
class ThreadPlan:
    """``count`` threads; thread i may run on the CPUs ``places[i]``, or anywhere where there are none."""

    count: int
    why: str
    places: tuple[tuple[int, ...], ...] = ()
    placing: str = "placed by the system"

    def describe(self) -> str:
        """In words, for reports."""
        return f"{self.count}: {self.why}; {self.placing}"


def ask_for(threads: int) -> None:
    """Take this many from now on, as far as the process may use so many; cores with two threads too."""
    import torch

    global _asked
    _asked = threads
    torch.set_num_threads(threads)


def choose_threads(model_bytes: int | None = None) -> ThreadPlan:
    """The plan for this process. ``model_bytes``: what the weights need at most, where that is known.

    Raises InputError for a value of ROOFLENS_PIN that means nothing.
    """
    import torch

    from rooflens.hardware.local_cpu import read_cpu

    count = torch.get_num_threads()
    if _reduced is not None and count == _reduced[1]:
        count = _reduced[0]
    asked = _asked if _asked == count else count if _THREADS_VARIABLE in os.environ else None
    return plan_threads(
        read_topology(),
        torch_threads=count,
        asked=asked,
        quota_cpus=read_cpu().quota_cpus,
        model_bytes=model_bytes,
        environment=os.environ,
    )


def take(plan: ThreadPlan) -> None:
    """Let torch's own operators, which share the threads, have no more of them than the plan."""
    import torch

    global _reduced
    count = torch.get_num_threads()
    if plan.count < count:
        torch.set_num_threads(plan.count)
        _reduced = (_reduced[0] if _reduced is not None and _reduced[1] == count else count, plan.count)


def plan_threads(
    topology: Topology,
    *,
    torch_threads: int,
    asked: int | None = None,
    quota_cpus: float | None = None,
    model_bytes: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> ThreadPlan:
    """One thread for each physical core: two on a core share the units and the bandwidth that they wait for.

    Over several memory nodes: the cores of the node that the process runs on, where the weights fit its free
    memory; else all, each thread kept on its node, so that what it packs lies near it. ``asked`` counts
    before all of this, the container's quota before ``asked``. Nothing is pinned to single cores unless
    ROOFLENS_PIN says so: several processes would take the same ones.
    """
    cores = topology.one_of_each_core()
    chosen, why = cores, f"one for each of {len(cores)} cores"
    if len(cores) < len(topology.cpus):
        why += f" ({len(topology.cpus)} CPUs)"
    if asked is not None:
        rest = sorted(set(topology.cpus) - set(cores), key=lambda cpu: (cpu.node, cpu.number))
        chosen = (*cores, *rest)[:asked]
        why = "as asked" if len(chosen) == asked else f"all {len(chosen)} CPUs that may be used"
    elif len(topology.nodes) > 1:
        chosen, why = _over_nodes(topology, cores, model_bytes)
    if asked is None and torch_threads < len(chosen):
        chosen, why = chosen[:torch_threads], "as torch has"
    if quota_cpus is not None and int(quota_cpus) < len(chosen):
        chosen, why = chosen[: max(1, int(quota_cpus))], f"the container's quota of {quota_cpus:g} CPUs"
    places, placing = _places(topology, chosen, environment)
    return ThreadPlan(max(1, len(chosen)), why, places, placing)


def _over_nodes(
    topology: Topology, cores: tuple[Cpu, ...], model_bytes: int | None
) -> tuple[tuple[Cpu, ...], str]:
    here, free = topology.here, topology.free_bytes.get(topology.here)
    own = tuple(cpu for cpu in cores if cpu.node == here)
    if model_bytes is not None and free is not None and model_bytes <= free:
        return own, f"the {len(own)} cores of memory node {here}, which has room for the weights"
    reason = "the weights do not fit one" if None not in (model_bytes, free) else "sizes are not known"
    return cores, f"all {len(cores)} cores of {len(topology.nodes)} memory nodes: {reason}"


def _places(
    topology: Topology, chosen: tuple[Cpu, ...], environment: Mapping[str, str]
) -> tuple[tuple[tuple[int, ...], ...], str]:
    pin = environment.get(PIN_VARIABLE, "")
    if pin not in ("", "0", "1"):
        raise InputError(f"{PIN_VARIABLE} is not usable", value=pin, allowed="0, 1")
    for name in PLACING_VARIABLES:
        if environment.get(name, "").lower() not in ("", "false", "disabled", "none"):
            return (), f"placed by {name}"
    if pin == "1":
        return tuple((cpu.number,) for cpu in chosen), "each on a core of its own"
    if len(topology.nodes) == 1 or pin == "0":
        return (), "placed by the system"
    return tuple(topology.of_node(cpu.node) for cpu in chosen), "each kept on its memory node"
