"""The probe on an NVIDIA or AMD device: a quick run gives believable figures for every part."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from rooflens.measure.probes.run import QUICK  # noqa: E402
from rooflens.measure.probes.target import open_target  # noqa: E402
from rooflens.measure.roofs import probe_device, roofs  # noqa: E402
from rooflens.measure.session import run_probe  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device"),
]


def test_quick_probe_of_a_gpu() -> None:
    record = run_probe(open_target("cuda:0"), QUICK)
    found = roofs(record)
    assert record.finished
    assert found.read_bytes_per_s is not None
    assert found.read_bytes_per_s > 0
    assert {"bf16", "fp32"} <= set(found.peaks)
    # Matrix units: bf16 is well ahead of fp32; a node of a graph costs less than an eager call.
    assert found.peaks["bf16"] > 2 * found.peaks["fp32"]
    assert found.dispatch_s["graph_node"] < found.dispatch_s["tiny_op"]
    assert {"to_device", "to_host"} <= set(found.link_bytes_per_s)
    device = probe_device(record)
    if device.spec is not None:
        assert 0.5 < found.read_bytes_per_s / (device.spec.bandwidth_bytes_per_s or 0) < 1.05
