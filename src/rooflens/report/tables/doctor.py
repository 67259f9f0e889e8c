"""What ``rooflens doctor`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType

from rooflens.report.tables.layout import Head, heading, section, table
from rooflens.report.words import Words
from rooflens.report.words_doctor import doctor_words
from rooflens.units import format_bytes

_TWO = [Head(), Head()]


def doctor_report(document: Mapping[str, Any], say: Words) -> RenderableType:
    """The whole answer; ``document`` is the command's JSON."""
    say = doctor_words(say)
    return Group(
        heading(f"Rooflens {document['rooflens']}", document["executable"]),
        section(heading(say("here")), table(_TWO, _here(document, say))),
        section(heading(say("devices")), table([Head(), Head(), Head()], _devices(document, say))),
        section(heading(say("probe")), _probe(document["probe"], say)),
        section(
            heading(say("extras")),
            table(
                _TWO,
                [
                    (
                        extra,
                        say("extra.missing", names=", ".join(missing), extra=extra)
                        if missing
                        else say("extra.whole"),
                    )
                    for extra, missing in document["extras"].items()
                ],
            ),
        ),
        section(heading(say("models")), *_models(document, say)),
    )


def _here(document: Mapping[str, Any], say: Words) -> list[tuple[str, str]]:
    rows = [(say("python"), document["python"]), (say("system"), document["system"])]
    torch = document["torch"]
    if torch is None:
        problem = document["torch_problem"]
        text = say("torch.missing") if problem is None else say("torch.problem", problem=problem)
        return [*rows, (say("torch"), text)]
    rows.append((say("torch"), say("threads", version=torch["version"], count=torch["threads"])))
    rows.append((say("kernels"), say("kernels.on", kernels=torch["kernels"], device=torch["device"])))
    rows += [("", f"{name}: {how}") for name, how in torch["kernel_path"].items()]
    rows.append((say("bf16"), say("bf16.yes" if torch["bf16"] else "bf16.no")))
    return rows


def _devices(document: Mapping[str, Any], say: Words) -> list[tuple[str, str, str]]:
    return [
        (
            str(device["name"] or device["kind"]),
            "" if device["memory_bytes"] is None else format_bytes(device["memory_bytes"], binary=True),
            device["missing"] or say("known", name=device["catalogue"]),
        )
        for device in document["devices"]
    ]


def _probe(probe: Mapping[str, Any], say: Words) -> RenderableType:
    if probe.get("problem"):
        return say("probe.problem", problem=probe["problem"])
    if probe["created"] is None:
        return say("probe.none")
    return say("probe.found", device=probe["device"], created=probe["created"])


def _models(document: Mapping[str, Any], say: Words) -> list[RenderableType]:
    rows = [(model["name"], format_bytes(model["bytes"]), model["from"]) for model in document["models"]]
    found = table([Head(), Head(number=True), Head()], rows) if rows else say("models.none")
    return [found, say("models.bundled", count=document["bundled_models"])]
