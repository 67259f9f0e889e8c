"""Prices: the user's own win, gpuhunt's catalogues come next, the snapshot last; each with its source."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from rooflens.errors import InputError
from rooflens.hardware import devices, find_device
from rooflens.interop.prices import GPUHUNT_NAMES, gpuhunt_prices, prices_of, snapshot_prices

SNAPSHOT = Path(__file__).parents[2] / "src" / "rooflens" / "hardware" / "data" / "prices.csv"


def test_every_line_of_the_snapshot_is_dated_sourced_and_of_a_known_device() -> None:
    known = {device.id for device in devices()}
    with open(SNAPSHOT, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert row["id"] in known
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", row["date"])
        assert row["source"]
        assert row["provider"]
        assert 0.01 < float(row["per_hour"]) < 20
    assert snapshot_prices()["h100-sxm"].per_hour == 3.99  # RunPod's, not AWS's 6.88


def test_gpuhunt_reads_its_own_catalogues() -> None:
    pytest.importorskip("gpuhunt")
    wanted = [find_device(name) for name in ("h100-sxm", "h100-pcie", "a10", "l40s", "t4", "mi300x")]
    found = gpuhunt_prices(wanted)
    # eight SXM cards for 31.92 are 3.99 each, cheaper than one for 4.29; the PCIe card is told apart
    assert found["h100-sxm"].per_hour == pytest.approx(31.92 / 8)
    assert found["h100-pcie"].per_hour == 3.29
    assert found["a10"].per_hour == 0.75
    assert found["l40s"].per_hour == pytest.approx(1.1)  # two for 2.20; the spot offer at 0.31 is left out
    assert "t4" not in found
    assert found["l40s"].provider == "verda l40s.2 eu-1"
    assert found["l40s"].source.startswith("gpuhunt ")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", found["l40s"].date or "")


def test_the_order_of_sources() -> None:
    pytest.importorskip("gpuhunt")
    asked = [find_device(name) for name in ("h100-sxm", "a10", "t4", "gaudi2")]
    found, notes = prices_of(asked, own={"h100-sxm": 2.0})
    assert found["h100-sxm"].source == "given by the user"
    assert found["a10"].source.startswith("gpuhunt")
    assert "akash" in found["t4"].source  # only the snapshot has it
    assert "gaudi2" not in found  # nobody has: no price, not a guess
    assert notes == []
    only, _ = prices_of(asked, own={"h100-sxm": 2.0}, source="none")
    assert set(only) == {"h100-sxm"}
    with pytest.raises(InputError, match="price source"):
        prices_of(asked, source="somewhere")


def test_catalogues_that_are_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("gpuhunt")
    monkeypatch.setenv("GPUHUNT_CATALOG_DIR", str(tmp_path))
    with pytest.raises(InputError, match="no catalogue files"):
        prices_of([find_device("t4")], source="gpuhunt")
    found, notes = prices_of([find_device("t4")])
    assert found["t4"].date == "2026-09-20"
    assert "snapshot" in notes[0]
    (tmp_path / "unheard-of.csv").write_text("instance_name\n", encoding="utf-8")
    with pytest.raises(InputError, match="cannot read"):
        prices_of([find_device("t4")], source="gpuhunt")


def test_gpuhunts_names_are_gpuhunts() -> None:
    gpuhunt = pytest.importorskip("gpuhunt")
    known = {(one.name, one.memory) for one in gpuhunt.KNOWN_ACCELERATORS}
    known_ids = {device.id for device in devices()}
    for device, (name, memory) in GPUHUNT_NAMES.items():
        assert (name, memory) in known, device
        assert device in known_ids
