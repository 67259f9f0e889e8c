"""Topologies read from captured trees, and the threads that are chosen for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rooflens.errors import InputError
from rooflens.hardware.topology import Topology, numbers_in, read_topology
from rooflens.runtime.native.threads import ThreadPlan, plan_threads

GIB = 2**30
FREE_KIB, CACHED_KIB = 6 * 2**20, 2 * 2**20


def tree(root: Path, *, cores: int, siblings: int = 1, nodes: int = 1, here: int = 0) -> Path:
    """A machine as Linux shows it: the first CPU of every core, then the second ones; 8 GiB free a node."""
    total = cores * siblings
    lists: dict[int, list[int]] = {node: [] for node in range(nodes)}
    for cpu in range(total):
        core = cpu % cores
        node = core * nodes // cores
        lists[node].append(cpu)
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        for name, value in (("physical_package_id", node), ("core_id", core), ("die_id", 0)):
            (topology / name).write_text(f"{value}\n")
    (root / "sys/devices/system/cpu/cpufreq").mkdir()
    for node, cpus in lists.items():
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(",".join(map(str, cpus)) + "\n")
        (folder / "meminfo").write_text(
            f"Node {node} MemTotal: {64 * 2**20} kB\nNode {node} MemFree:  {FREE_KIB} kB\n"
            f"Node {node} FilePages: {CACHED_KIB} kB\n"
        )
    (root / "proc/self").mkdir(parents=True)
    fields = ["S", *["0"] * 35, str(here), "0", "0"]
    (root / "proc/self/stat").write_text(f"4242 (a name) with 1) {' '.join(fields)}\n")
    return root


def plan(topology: Topology, environment: Mapping[str, str] | None = None, **settings: Any) -> ThreadPlan:
    settings = {"torch_threads": len(topology.cpus), **settings}
    return plan_threads(topology, environment=environment or {}, **settings)


def test_lists_of_numbers() -> None:
    assert numbers_in("0-3,8,10-11") == [0, 1, 2, 3, 8, 10, 11]
    assert numbers_in("") == []


def test_a_tree_is_read(tmp_path: Path) -> None:
    found = read_topology(root=tree(tmp_path, cores=8, siblings=2, nodes=2, here=13))
    assert [cpu.number for cpu in found.cpus] == list(range(16))
    assert found.nodes == (0, 1)
    assert [cpu.number for cpu in found.one_of_each_core()] == list(range(8))
    assert found.of_node(1) == (4, 5, 6, 7, 12, 13, 14, 15)
    assert found.here == 1
    assert found.free_bytes == {0: 8 * GIB, 1: 8 * GIB}


def test_what_the_system_hides_is_one_node_of_cores(tmp_path: Path) -> None:
    for cpu in range(3):
        (tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/core_id").write_text("-1\n")
    found = read_topology(root=tmp_path)
    assert len(found.one_of_each_core()) == 3
    assert (found.nodes, found.here, found.free_bytes) == ((0,), 0, {})
    assert plan(found).count == 3
    # A system without any of these files.
    assert read_topology(root=tmp_path / "none").cpus


def test_one_thread_for_each_core(tmp_path: Path) -> None:
    found = plan(read_topology(root=tree(tmp_path, cores=4, siblings=2)))
    assert found == ThreadPlan(4, "one for each of 4 cores (8 CPUs)")
    assert found.describe() == "4: one for each of 4 cores (8 CPUs); placed by the system"


def test_quota_torch_and_what_is_asked(tmp_path: Path) -> None:
    topology = read_topology(root=tree(tmp_path, cores=4, siblings=2))
    assert (plan(topology, quota_cpus=2.5).count, plan(topology, quota_cpus=0.5).count) == (2, 1)
    assert plan(topology, quota_cpus=2.5).why == "the container's quota of 2.5 CPUs"
    assert (plan(topology, torch_threads=3).count, plan(topology, torch_threads=3).why) == (3, "as torch has")
    assert (plan(topology, asked=6).count, plan(topology, asked=6).why) == (6, "as asked")
    assert plan(topology, asked=99).why == "all 8 CPUs that may be used"
    assert plan(topology, asked=6, quota_cpus=4).count == 4


def test_a_model_that_fits_one_memory_node_stays_there(tmp_path: Path) -> None:
    topology = read_topology(root=tree(tmp_path, cores=8, siblings=2, nodes=2, here=5))
    near = plan(topology, model_bytes=5 * GIB)
    assert near.count == 4
    assert near.why == "the 4 cores of memory node 1, which has room for the weights"
    assert near.placing == "each kept on its memory node"
    # Not one core each: the second CPUs are there too, for when something else runs on the first.
    assert near.places == (topology.of_node(1),) * 4


def test_a_larger_one_is_spread_and_each_thread_stays_near_its_rows(tmp_path: Path) -> None:
    topology = read_topology(root=tree(tmp_path, cores=8, siblings=2, nodes=2))
    wide = plan(topology, model_bytes=9 * GIB)
    assert wide.count == 8
    assert wide.why == "all 8 cores of 2 memory nodes: the weights do not fit one"
    assert wide.places == (topology.of_node(0),) * 4 + (topology.of_node(1),) * 4
    assert plan(topology).why == "all 8 cores of 2 memory nodes: sizes are not known"


def test_pinning_is_asked_for(tmp_path: Path) -> None:
    topology = read_topology(root=tree(tmp_path, cores=4, siblings=2))
    pinned = plan(topology, {"ROOFLENS_PIN": "1"})
    assert pinned.places == ((0,), (1,), (2,), (3,))
    assert pinned.placing == "each on a core of its own"
    assert plan(topology, {"ROOFLENS_PIN": "1"}, asked=5).places[-1] == (4,)
    with pytest.raises(InputError, match="ROOFLENS_PIN"):
        plan(topology, {"ROOFLENS_PIN": "yes"})
    two = read_topology(root=tree(tmp_path / "two", cores=4, nodes=2))
    assert plan(two, {"ROOFLENS_PIN": "0"}).places == ()


@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"])
def test_who_places_openmps_threads_is_left_alone(name: str, tmp_path: Path) -> None:
    topology = read_topology(root=tree(tmp_path, cores=4, nodes=2))
    placed = plan(topology, {name: "close", "ROOFLENS_PIN": "1"})
    assert (placed.places, placed.placing) == ((), f"placed by {name}")
    assert plan(topology, {name: "false"}).places != ()


IN_PLACE = """
import os, sys
import torch
from rooflens.runtime.native.library import load

library, before = load(), os.sched_getaffinity(0)
threads = len(before)
places = [[cpu] for cpu in sorted(before)]
assert library.place_threads(places)
data = torch.ones(1 << 20, dtype=torch.uint8)
for _ in range(2):
    library.read(data.data_ptr(), data.nbytes, threads)
# Whoever calls has its own places back, so what it starts later has them too.
assert os.sched_getaffinity(0) == before
masks = [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")]
print(sorted(next(iter(mask)) for mask in masks if len(mask) == 1 < threads))
library.place_threads([])
library.read(data.data_ptr(), data.nbytes, threads)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system places no threads")
def test_threads_of_the_pool_go_to_their_places() -> None:
    pytest.importorskip("torch")
    from rooflens.runtime.native.library import available

    if (missing := available()) is not None:
        pytest.skip(missing)
    allowed = sorted(os.sched_getaffinity(0))
    done = subprocess.run(
        [sys.executable, "-c", IN_PLACE],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": str(len(allowed))},
    )
    assert done.returncode == 0, done.stderr
    # All but the first, which called.
    assert done.stdout.splitlines()[-1] == str(allowed[1:])
