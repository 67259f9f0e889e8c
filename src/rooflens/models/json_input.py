"""JSON from people and servers: strict, bounded, and clear about what is wrong with it.

Python's own parser takes NaN and Infinity, keeps the last of two equal keys, lets deep nesting end in
RecursionError and reads a file of any size. Here each of these is an InputError in one sentence.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any, NoReturn

from rooflens.errors import InputError
from rooflens.models.file_input import HEAD_BYTES, file_error, quoted, refuse_foreign, refuse_text
from rooflens.units import MIB, format_bytes

#: The largest published config is under 1 MB.
LIMIT_BYTES = 16 * MIB
LIMIT_DEPTH = 64

#: Fields where published configs have an infinite bound and mean it: Mamba-2's clamp on its time step.
NON_FINITE_FIELDS = frozenset({"time_step_limit"})

_PIECE_BYTES = MIB
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_CUT_OFF = "the file ends too early: download or copy it again"


def read_json_object(
    source: str | os.PathLike[str] | bytes, *, what: str = "config.json", limit_bytes: int = LIMIT_BYTES
) -> dict[str, Any]:
    """Read one JSON object from a path or from bytes; ``what`` names it in errors.

    NaN and Infinity are refused except in `NON_FINITE_FIELDS`, where they are kept as floats.
    Raises NotFoundError for a missing file; InputError for anything that is not one JSON object in UTF-8
    of at most ``limit_bytes`` and `LIMIT_DEPTH` levels, or that gives one key two different values.
    """
    if isinstance(source, bytes):
        raw = source
    else:
        raw = _read_file(Path(source), what=what, limit_bytes=limit_bytes)
    if len(raw) > limit_bytes:
        raise InputError(f"{what} is too large", allowed=f"at most {format_bytes(limit_bytes, binary=True)}")
    parsed = parse_json_object(raw, what=what, unique_keys=True)
    _check_tree(parsed, what=what)
    return parsed


def parse_json_object(raw: bytes, *, what: str, unique_keys: bool = False) -> dict[str, Any]:
    """Parse ``raw`` as one JSON object, without walking its tree: for tables checked as they are read.

    Raises InputError for bytes that are not such an object.
    """
    refuse_foreign(raw[:HEAD_BYTES], name=what, expected="JSON")

    def keep_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return _unique(pairs, what=what)

    try:
        text = raw.decode("utf-8-sig")
        parsed = json.loads(text, object_pairs_hook=keep_pairs if unique_keys else None)
    except UnicodeDecodeError as error:
        _refuse_encoding(error, raw, what=what)
    except json.JSONDecodeError as error:
        _refuse_syntax(error, raw, what=what)
    except RecursionError:
        raise InputError(f"{what} is nested too deeply", allowed=f"at most {LIMIT_DEPTH} levels") from None
    except ValueError:  # an integer of more digits than Python converts
        raise InputError(f"{what} has a number of thousands of digits") from None
    if not isinstance(parsed, dict):
        raise InputError(f"{what} does not hold a JSON object", value=_kind(parsed), allowed="{...}")
    if _SURROGATE_ESCAPE.search(raw):
        _check_encodable(parsed, what=what)
    return parsed


def _read_file(path: Path, *, what: str, limit_bytes: int) -> bytes:
    # Piece by piece, since read() would set aside all of the limit first and a device has no size to go by.
    pieces: list[bytes] = []
    left = limit_bytes + 1
    try:
        with path.open("rb") as file:
            while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
                pieces.append(piece)
                left -= len(piece)
    except (OSError, ValueError) as error:
        raise file_error(path, error, what="" if path.name == what else what) from None
    return b"".join(pieces)


def _unique(pairs: list[tuple[str, Any]], *, what: str) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen and seen[key] != value:
                raise InputError(
                    f"{what} gives {quoted(key)} twice with different values", next="remove one of the two"
                )
            seen[key] = value
    return table


def _refuse_encoding(error: UnicodeDecodeError, raw: bytes, *, what: str) -> NoReturn:
    found = "UTF-16 or UTF-32" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in raw[:4] else None
    raise InputError(
        f"{what} is not UTF-8 text",
        value=found or f"byte 0x{raw[error.start]:02x} at offset {error.start}",
        next="save it as UTF-8",
    ) from None


def _refuse_syntax(error: json.JSONDecodeError, raw: bytes, *, what: str) -> NoReturn:
    if b"\0" in raw[:4]:
        raise InputError(f"{what} is not UTF-8 text", value="UTF-16 or binary data", next="save it as UTF-8")
    if not error.doc.strip():
        raise InputError(f"{what} is empty", allowed="a JSON object {...}")
    if not error.doc.lstrip().startswith(("{", "[")):
        refuse_text(raw, name=what, expected="JSON")
    where = f"line {error.lineno}, column {error.colno}"
    # Cut inside a string the scanner stops at its opening quote, inside a word at its first letter.
    rest = error.doc[error.pos :].strip()
    cut_word = any(word.startswith(rest) for word in ("true", "false", "null", "-"))
    if cut_word or error.msg.startswith("Unterminated string"):
        raise InputError(f"{what} is cut off at {where}", value=_tail(error), next=_CUT_OFF)
    raise InputError(f"{what} is not valid JSON at {where}: {error.msg}", value=_tail(error))


def _tail(error: json.JSONDecodeError) -> str:
    return quoted(error.doc[max(0, error.pos - 20) : error.pos + 20])


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _check_tree(root: dict[str, Any], *, what: str) -> None:
    """Refuse depth over `LIMIT_DEPTH` and numbers that are not finite; a loop, so that it cannot overflow."""
    pending: list[tuple[Any, str, int, bool]] = [(root, "", 1, False)]
    while pending:
        node, path, depth, may_be_infinite = pending.pop()
        if depth > LIMIT_DEPTH:
            raise InputError(
                f"{what} is nested too deeply at {quoted(path)}", allowed=f"at most {LIMIT_DEPTH} levels"
            )
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if not isinstance(value, (dict, list, float)):
                continue
            here = f"{path}.{key}" if path else str(key)
            infinite_here = may_be_infinite or key in NON_FINITE_FIELDS
            if not isinstance(value, float):
                pending.append((value, here, depth + 1, infinite_here))
            elif not (math.isfinite(value) or infinite_here):
                raise InputError(f"{what} has a number that is not finite in {quoted(here)}", value=value)


def _check_encodable(parsed: dict[str, Any], *, what: str) -> None:
    """Refuse half of a surrogate pair: such a string cannot be printed or written again."""
    try:
        json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError(f"{what} has a string with half of a surrogate pair") from None
    except RecursionError:
        raise InputError(f"{what} is nested too deeply", allowed=f"at most {LIMIT_DEPTH} levels") from None
