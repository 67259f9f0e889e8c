"""The Python reference, from signatures and docstrings: what the package says of itself."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import rooflens
from docs.builder.reference_source import runtime_reference

# Module -> what of it is public beyond ``rooflens`` itself: results, and the parts of them.
_RESULTS = {
    "rooflens.analysis.plan": ("Plan", "PhaseResult"),
    "rooflens.analysis.estimate": ("Range",),
    "rooflens.analysis.ledger": ("Ledger", "LedgerRow"),
    "rooflens.models.inspection": ("Inspection",),
    "rooflens.hardware.device": ("Device", "Peak", "MemoryLevel", "Link"),
    "rooflens.analysis.sweep": ("Sweep", "Knee"),
    "rooflens.analysis.compare": ("Comparison", "Cell"),
    "rooflens.analysis.points": ("RooflineView", "RooflinePoint"),
    "rooflens.analysis.serving": ("Serving",),
    "rooflens.analysis.search_result": ("SearchResult",),
    "rooflens.analysis.validate": ("Validation",),
    "rooflens.analysis.calibrate": ("CalibrationResult",),
    "rooflens.errors": (
        "RooflensError",
        "InputError",
        "NotFoundError",
        "UnsupportedError",
        "DependencyError",
    ),
}

_HEAD = """# Python

Generated from the package's own signatures and docstrings when these pages are built.
Units are SI base units and names carry them: `_bytes`, `_s`, `_flops`, `_per_s`. Every result has
`to_dict()`, which equals the command line's `--json`.

## Functions
"""


def python_reference() -> str:
    """The whole page as Markdown."""
    pieces = [_HEAD]
    pieces += [_function(f"rooflens.{name}", getattr(rooflens, name)) for name in rooflens.__all__]
    pieces.append("## Results\n")
    for module, names in _RESULTS.items():
        pieces += [_class(getattr(import_module(module), name)) for name in names]
    return "\n".join([*pieces, runtime_reference()])


def _function(name: str, function: Any) -> str:
    return f"### {name}\n\n```python\n{_signature(name, function)}\n```\n\n{_prose(function)}\n"


def _signature(name: str, function: Any) -> str:
    """The call as it is written in code, one parameter a line where it is long."""
    signature = inspect.signature(function)
    short = f"{name}{signature}".replace("'", "")
    if len(short) <= 88:
        return short
    lines: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in lines and not _starred(lines):
            lines.append("*")
        lines.append(str(parameter).replace("'", ""))
    returns = str(signature.return_annotation).strip("'")
    return f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + f") -> {returns}"


def _starred(lines: list[str]) -> bool:
    return any(line.startswith("*") for line in lines)


def _class(found: type) -> str:
    rows = list(_members(found))
    listed = "\n".join(f"| `{name}` | {kind} | {text} |" for name, kind, text in rows)
    members = f"\n| name | type | meaning |\n| :--- | :--- | :--- |\n{listed}\n" if rows else ""
    return f"### {found.__name__}\n\n`{found.__module__}.{found.__name__}`\n\n{_prose(found)}\n{members}"


def _members(found: type) -> Iterator[tuple[str, str, str]]:
    """Fields, properties and methods of a class, in the order in which they are written."""
    if dataclasses.is_dataclass(found):
        for one in dataclasses.fields(found):
            yield one.name, _typed(one.type), ""
    for name, member in vars(found).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property) and member.fget is not None:
            kind = member.fget.__annotations__.get("return", "")
            yield name, _typed(kind), _first_line(member)
        elif inspect.isfunction(member):
            yield f"{name}()", _typed(member.__annotations__.get("return", "")), _first_line(member)


def _typed(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return f"`{text}`".replace("|", "\\|") if text else ""


def _first_line(member: Any) -> str:
    first = (inspect.getdoc(member) or "").partition("\n\n")[0]
    return _escaped(" ".join(first.split()))


def _prose(found: Any) -> str:
    """A docstring as Markdown: double backticks become code, paragraphs stay."""
    return _escaped(inspect.getdoc(found) or "")


def _escaped(text: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL)
