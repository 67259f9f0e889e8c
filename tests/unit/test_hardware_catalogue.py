"""The catalogue: figures that must come out, names that must be found, and blanks that stay blank."""

from __future__ import annotations

import csv
import json
import math
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflens.errors import InputError, NotFoundError, UnsupportedError
from rooflens.hardware import DTYPES, Device, devices, filter_devices, find_device
from rooflens.hardware.catalogue import _index, normalise
from rooflens.hardware.tables import DATA, read_rows
from rooflens.units import GIB

ROWS = list(read_rows("devices.csv"))
MORE = list(read_rows("devices_more.csv"))


def test_every_row_of_the_table_is_a_device() -> None:
    # 99 rows; two V100 rows hold two memory sizes each (+2); MI250X is listed once more as a half (+1).
    # 15 more cards are in a table of their own.
    assert len(ROWS) == 99
    assert len(MORE) == 15
    assert len(devices()) == 99 + 2 + 1 + 15
    for row in (*ROWS, *MORE):
        assert find_device(row["id"]).arch == row["arch"]
        assert find_device(row["id"]).vendor == row["vendor"]


@pytest.mark.parametrize(
    ("name", "tflops", "gb_per_s", "ridge", "memory_gb"),
    [
        ("t4", 65, 320, 203, 16),  # 65e12 / 320e9 = 203.1
        ("rtx-4090", 165.2, 1008, 164, 24),  # 165.2e12 / 1008e9 = 163.9
        ("a100-pcie-80", 312, 1935, 161, 80),  # 312e12 / 1935e9 = 161.2
        ("a100-sxm-80", 312, 2039, 153, 80),  # 312e12 / 2039e9 = 153.0
        ("h100-sxm", 989.4, 3350, 295, 80),  # 989.4e12 / 3350e9 = 295.3
        ("b200-sxm", 2250, 8000, 281, 180),  # 2250e12 / 8000e9 = 281.25
    ],
)
def test_reference_ridge_points(
    name: str, tflops: float, gb_per_s: float, ridge: int, memory_gb: int
) -> None:
    device = find_device(name)
    assert device.peak_flops_per_s("fp16") == pytest.approx(tflops * 1e12)
    assert device.bandwidth_bytes_per_s == pytest.approx(gb_per_s * 1e9)
    assert round(device.ridge_flops_per_byte("fp16")) == ridge
    assert device.memory_bytes == memory_gb * 1e9


@pytest.mark.parametrize(("name", "sparse"), [("rtx-4090", 330), ("a100-sxm-80", 624), ("h100-sxm", 1979)])
def test_sparse_figures_are_no_dense_16_bit_peak(name: str, sparse: float) -> None:
    device = find_device(name)
    for dtype in ("bf16", "fp16", "tf32", "fp32"):
        assert device.peak_flops_per_s(dtype) < 0.6 * sparse * 1e12


def test_fp16_accumulate_is_a_peak_of_its_own() -> None:
    # GeForce: fp32 accumulate runs at half the fp16-accumulate rate, 165.2 and 330.3.
    device = find_device("4090")
    assert device.peak_flops_per_s("fp16") == pytest.approx(165.2e12)
    assert device.peak_flops_per_s("fp16_acc16") == pytest.approx(330.3e12)


def test_numbers_of_sms() -> None:
    assert [find_device(n).sm_count for n in ("a100", "h100", "4090")] == [108, 132, 128]
    assert find_device("h100").l2_bytes == 50 * 2**20


def test_a100_memory_pyramid() -> None:
    levels = {level.name: level for level in find_device("a100-sxm-80").memory_levels()}
    assert list(levels) == ["registers", "shared memory", "L2", "device memory", "host link"]
    registers, shared, l2 = levels["registers"], levels["shared memory"], levels["L2"]
    assert (registers.bytes_per_unit, registers.units) == (256 * 1024, 108)
    assert registers.bandwidth_bytes_per_s is None
    assert shared.bytes_per_unit == 192 * 1024
    assert shared.bandwidth_bytes_per_s == pytest.approx(128 * 108 * 1410e6)  # 19.5 TB/s
    assert l2.bytes == 40 * 2**20
    assert l2.bandwidth_bytes_per_s == pytest.approx(5.5e12, rel=0.02)
    assert l2.bandwidth_evidence == "measured"
    memory, host = levels["device memory"], levels["host link"]
    assert memory.bandwidth_bytes_per_s == pytest.approx(2.039e12)
    assert memory.latency_cycles == pytest.approx(500, rel=0.02)
    assert memory.latency_s == pytest.approx(503.7 / 1.41e9)
    # PCIe Gen4 x16: 64 GB/s both ways on the wire, 31.5 per direction after 128b/130b coding.
    assert host.bandwidth_bytes_per_s == pytest.approx(31.5e9)
    assert host.bandwidth_bytes_per_s * host.directions == pytest.approx(64e9, rel=0.02)
    # 108 x 192 KiB + 40 MiB = 60.25 MiB, over 200 times less than the weights of Llama-2-7B.
    on_chip = find_device("a100-sxm-80").on_chip_cache_bytes
    assert on_chip == 108 * 192 * 1024 + 40 * 2**20
    assert 13.5e9 / on_chip > 200


def test_levels_are_never_invented() -> None:
    for device in devices():
        for level in device.memory_levels():
            assert (level.bytes is None) == (level.size_evidence is None) or level.name == "host link"
            assert (level.bandwidth_bytes_per_s is None) == (level.bandwidth_evidence is None)
            assert (level.latency_s is None) == (level.latency_evidence is None)
    apple = {level.name: level for level in find_device("m3-max").memory_levels()}
    assert apple["L2"].bytes is None
    assert "host link" not in apple  # unified memory: there is no link to cross


def test_every_on_chip_fact_and_reported_size_belongs_to_a_device() -> None:
    ids, isas = {d.id for d in devices()}, {d.isa for d in devices()}
    for row in read_rows("onchip.csv"):
        assert row["evidence"] in ("spec", "derived", "measured")
        assert row["source"]
        assert set(row["applies_to"].split("|")) <= ids | isas
    for row in read_rows("reported_memory.csv"):
        assert row["id"] in ids
        assert row["source"]


def test_reported_memory_is_near_the_nominal_size() -> None:
    known = [d for d in devices() if d.reported_memory_bytes is not None]
    assert find_device("h100").reported_memory_bytes == round(79.19 * GIB)
    assert find_device("h100-pcie").reported_memory_bytes is None
    for device in known:
        assert device.memory_bytes is not None
        assert device.reported_memory_bytes == pytest.approx(device.memory_bytes, rel=0.1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("RTX_4090", "rtx-4090"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80"),
        ("A100-SXM4-40GB", "a100-sxm-40"),
        ("A100 80GB PCIe", "a100-pcie-80"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40"),
        ("a100", "a100-sxm-80"),
        ("h100", "h100-sxm"),
        ("h100-sxm", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("b200", "b200-sxm"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm"),
        ("NVIDIA GH200 480GB", "gh200-96"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32"),
        ("v100", "v100-sxm2-16"),
        ("v100-sxm2", "v100-sxm2-16"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD Instinct MI250X/MI250", "mi250x"),
        ("Intel(R) Arc(TM) B580 Graphics", "arc-b580"),
        ("Intel(R) Xeon(R) Platinum 8480+", "xeon-8480p"),
        ("Apple M3 Max", "m3-max"),
        ("dgx spark", "gb10"),
    ],
)
def test_names_that_drivers_and_people_use(name: str, expected: str) -> None:
    assert find_device(name).id == expected


@pytest.mark.parametrize("name", ["RTX 4060 Ti 8GB", "rtx pro 6000", "m4-ultra", "mi300", "a100-160", "gb"])
def test_a_name_that_fits_no_one_device_is_refused_with_the_nearest(name: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        find_device(name)
    assert caught.value.value == name
    assert "`rooflens devices`" in str(caught.value.next)


def test_suggestions_name_the_nearest() -> None:
    with pytest.raises(NotFoundError, match="rtx-pro-6000-ws, rtx-pro-6000-se"):
        find_device("rtx pro 6000")
    with pytest.raises(NotFoundError, match="rtx-4090"):
        find_device("rtx4o90")
    with pytest.raises(InputError, match="empty"):
        find_device("  ")


def test_no_name_belongs_to_two_devices() -> None:
    owners: dict[str, str] = {}
    for device in devices():
        for name in {normalise(n) for n in (device.id, device.name, *device.aliases)}:
            assert owners.setdefault(name, device.id) == device.id
    for row in read_rows("aliases.csv"):
        assert owners.setdefault(normalise(row["alias"]), row["id"]) == row["id"]
    assert _index()["a100"].id == "a100-sxm-80"


ALIASES = sorted(
    {(name, d.id) for d in devices() for name in (d.id, d.name, *d.aliases)}
    | {(row["alias"], row["id"]) for row in read_rows("aliases.csv")}
)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(ALIASES), st.randoms(use_true_random=False))
def test_case_spaces_and_dashes_make_no_difference(entry: tuple[str, str], rng: random.Random) -> None:
    name, expected = entry
    mangled = ""
    for char in name:
        if char in " -_":
            mangled += rng.choice(["", " ", "-", "_", "  "])
        else:
            # Nothing is put inside a word: "(TM)" is one mark.
            mangled += rng.choice([char.upper(), char.lower()])
    assert find_device(f" {mangled} ").id == expected


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("p100", "fp16"), ("4090", "fp4"), ("h100", "int4"), ("m3-max", "fp32"), ("gb10", "bf16")],
)
def test_a_missing_dtype_is_refused_and_the_known_ones_named(name: str, dtype: str) -> None:
    device = find_device(name)
    with pytest.raises(UnsupportedError) as caught:
        device.peak_flops_per_s(dtype)
    assert device.name in caught.value.what
    assert dtype in caught.value.what
    for known in device.peaks_flops_per_s:
        assert known in str(caught.value.allowed)
    with pytest.raises(UnsupportedError):
        device.ridge_flops_per_byte(dtype)


def test_dtype_names() -> None:
    assert find_device("a100").peak_flops_per_s("bfloat16") == find_device("a100").peak_flops_per_s("bf16")
    with pytest.raises(InputError, match="compute dtype"):
        find_device("a100").peak_flops_per_s("fp17")


def test_a_blank_stays_unknown() -> None:
    ascend = find_device("ascend-910b")
    assert ascend.bandwidth_bytes_per_s is None
    assert ascend.peaks == ()
    assert ascend.missing_figures() == ("peak", "bandwidth")
    with pytest.raises(UnsupportedError, match="bandwidth"):
        ascend.bandwidth()
    assert find_device("epyc-9654").memory_bytes is None
    assert find_device("m4").peaks == ()
    for row in ROWS:
        device = find_device(row["id"])
        assert (row["mem_bw_gbs"] == "") == (device.bandwidth_bytes_per_s is None)
        assert (row["l2_mb"] == "") == (device.l2_bytes is None)
        assert (row["tdp_w"] == "") == (device.tdp_w is None)
        columns = [
            column for column in ("bf16", "tf32", "int8", "fp4", "int4", "mxfp8", "fp32") if row[column]
        ]
        assert set(columns) <= set(device.peaks_flops_per_s)


def test_evidence_follows_the_source() -> None:
    assert find_device("h100").peak("bf16").evidence == "spec"
    assert find_device("rtx-3060-12").peak("bf16").evidence == "derived"
    assert find_device("epyc-9654").peak("fp32").evidence == "derived"  # computed at base clock
    assert find_device("epyc-9654").bandwidth_evidence == "derived"  # channels x MT/s x 8


def test_a_package_of_two_devices_and_one_of_them() -> None:
    whole, half = find_device("mi250x"), find_device("mi250x-gcd")
    assert whole.devices_in_package == 2
    assert half.part_of == whole.id
    assert half.peak_flops_per_s("bf16") == pytest.approx(191.5e12)  # 383 / 2
    assert half.memory_bytes == 64e9
    assert half.bandwidth_bytes_per_s == pytest.approx(1638.5e9)  # 3277 / 2
    assert half.sm_count == 110
    assert half.ridge_flops_per_byte("bf16") == whole.ridge_flops_per_byte("bf16")


def test_published_measurements_keep_their_text() -> None:
    measured = dict(find_device("h100").measured)
    bandwidth = measured["bandwidth_bytes_per_s"]
    assert (bandwidth.text, bandwidth.low, bandwidth.high) == ("2914-3102", 2914e9, 3102e9)
    odd = dict(find_device("mi300x").measured)["bandwidth_bytes_per_s"]
    assert odd.text.startswith("~81%")
    assert odd.low is None


def test_filters() -> None:
    assert {d.vendor for d in filter_devices(vendor="amd")} == {"AMD"}
    assert all(d.kind == "cpu" for d in filter_devices(kind="CPU"))
    big = filter_devices(min_memory_bytes=180e9, dtype="fp8")
    assert {"mi300x", "b200-sxm"} <= {d.id for d in big}
    assert all((d.memory_bytes or 0) >= 180e9 for d in big)
    assert [d.id for d in filter_devices(text="h100")] == ["h100-pcie", "h100-sxm", "h100-nvl"]
    assert filter_devices(text="no such thing") == ()
    with pytest.raises(InputError, match="vendor"):
        filter_devices(vendor="acme")
    with pytest.raises(InputError, match="dtype"):
        filter_devices(dtype="fp3")


def test_json_form_is_complete_and_finite() -> None:
    def finite(value: object) -> bool:
        if isinstance(value, dict):
            return all(isinstance(k, str) and finite(v) for k, v in value.items())
        if isinstance(value, list):
            return all(finite(v) for v in value)
        return not isinstance(value, float) or math.isfinite(value)

    for device in devices():
        document = device.to_dict()
        assert finite(document)
        json.dumps(document, allow_nan=False)
        assert set(document["peaks_flops_per_s"]) <= set(DTYPES)
    h100 = find_device("h100").to_dict()
    assert h100["peaks_flops_per_s"]["bf16"] == pytest.approx(989.4e12)
    assert h100["ridge_flops_per_byte"]["bf16"] == pytest.approx(295.3, abs=0.1)
    assert h100["evidence"]["peaks_flops_per_s"]["bf16"] == "spec"
    assert h100["memory_levels"][0]["name"] == "registers"
    assert h100["llc_bytes"] is None
    assert find_device("ascend-910b").to_dict()["bandwidth_bytes_per_s"] is None


def test_devices_are_immutable_and_hashable() -> None:
    device = find_device("a100")
    assert len(set(devices())) == len(devices())
    with pytest.raises(AttributeError):
        device.memory_bytes = 1  # type: ignore[misc]
    device.peaks_flops_per_s["bf16"] = 0.0
    assert device.peak_flops_per_s("bf16") == 312e12


def test_data_files_are_rectangular() -> None:
    for path in DATA.glob("*.csv"):
        with open(path, newline="", encoding="utf-8") as file:
            assert len({len(row) for row in csv.reader(file)}) == 1, path.name


def test_the_catalogue_loads_nothing_heavy() -> None:
    code = (
        "import sys; from rooflens.hardware import find_device; find_device('h100').to_dict();"
        "print([m for m in ('numpy', 'pandas', 'torch', 'rooflens.hardware.local') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_resolve() -> None:
    import rooflens.hardware as hardware

    for name in hardware.__all__:
        assert getattr(hardware, name) is not None
    assert hardware.Device is Device
    with pytest.raises(AttributeError):
        _ = hardware.nothing
