"""Where a measured batch curve bends, and what bends it: the reading of a benchmark's accounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from rooflens.analysis.ridge import ridge_batch
from rooflens.analysis.step import decode_step, step_ops
from rooflens.analysis.workload import device_rates
from rooflens.explain import Account, AccountRow, ModuleRow, Remark
from rooflens.hardware.device import Device
from rooflens.models.spec import ModelSpec
from rooflens.reading import BatchPoint, Reading, read_knee


def account_from(document: Mapping[str, Any]) -> Account:
    """The account that ``Account.to_dict`` wrote, so that a resumed benchmark is read as a whole."""
    known = {field.name: document[field.name] for field in fields(Account)}
    known["rows"] = tuple(AccountRow(**row) for row in document["rows"])
    names = {field.name for field in fields(ModuleRow)}
    known["modules"] = tuple(
        ModuleRow(**{name: value for name, value in module.items() if name in names})
        for module in document["modules"]
    )
    known["remarks"] = tuple(Remark(**remark) for remark in document["remarks"])
    for name in ("only_predicted", "only_measured"):
        known[name] = tuple(document[name])
    return Account(**known)


def batch_knee(
    points: Sequence[Mapping[str, Any]], spec: ModelSpec, device: Device, *, kv_dtype: str
) -> Reading | None:
    """The knee of the measured points of one prompt length; None for fewer than two of them."""
    measured = [point for point in points if point.get("account")]
    if not measured:
        return None
    prompt = measured[0]["prompt"]
    ops = step_ops(spec, decode_step(sequences=1, context=0), kv_dtype=kv_dtype)
    roof = device_rates(spec, device, ops, strict=False).roof
    return read_knee(
        [
            BatchPoint(point["batch"], account_from(point["account"]))
            for point in measured
            if point["prompt"] == prompt
        ],
        ridge_batch=ridge_batch(spec, roof, kv_dtype=kv_dtype),
    )
