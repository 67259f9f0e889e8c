"""Every power of ten and two, the parsing of quantities and their formatting; nowhere else.

Inside Rooflens all quantities are SI base units (bytes, seconds, FLOP, FLOP/s, bytes/s).
Sizes are strict about case: ``GB`` is 1e9 bytes, ``GiB`` is 2**30 bytes, ``Gb`` (gigabits) is refused.
"""

from __future__ import annotations

import math
import re

from rooflens.errors import InputError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KILO, MEGA, GIGA, TERA, PETA = 10**3, 10**6, 10**9, 10**12, 10**15
BITS_PER_BYTE = 8

_DECIMAL = {"": 1, "k": KILO, "K": KILO, "M": MEGA, "G": GIGA, "T": TERA, "P": PETA}
_BINARY = {"Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": TIB}
_SHORT_COUNT = {"k": KILO, "m": MEGA, "b": GIGA, "g": GIGA, "t": TERA}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}

_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$", re.DOTALL)


def _split(text: str | float, field: str, allowed: str) -> tuple[float, str]:
    if isinstance(text, bool):
        raise InputError(f"{field} is not a number", value=text, allowed=allowed)
    if isinstance(text, (int, float)):
        return float(text), ""
    match = _NUMBER.match(text)
    if match is None:
        raise InputError(f"{field} is not a number", value=text, allowed=allowed)
    return float(match[1].replace("_", "").replace(",", "")), match[2]


def _positive(value: float, field: str, text: str | float, allowed: str) -> float:
    if not math.isfinite(value) or value <= 0:
        raise InputError(f"{field} must be positive and finite", value=text, allowed=allowed)
    return value


def parse_bytes(text: str | float, *, field: str = "size") -> int:
    """Parse a size such as ``24GB``, ``128 KiB`` or ``13.5e9`` into bytes.

    Units: returns whole bytes. Raises InputError for a bare prefix (``24G``), bits (``Gb``), or a
    value that is not positive.
    """
    allowed = "a positive number of bytes such as 24GB (1e9), 24GiB (2^30) or 24e9"
    number, unit = _split(text, field, allowed)
    if unit in ("", "B"):
        scale = 1
    elif unit.endswith("B") and unit[:-1] in _BINARY:
        scale = _BINARY[unit[:-1]]
    elif unit.endswith("B") and unit[:-1] in _DECIMAL:
        scale = _DECIMAL[unit[:-1]]
    else:
        hint = None
        if unit.endswith("b"):
            hint = f"'{unit}' means bits: write '{unit[:-1].upper()}B' for bytes"
        elif unit in _DECIMAL or unit in _BINARY:
            hint = f"write {unit[:1]}B (powers of ten) or {unit[:1]}iB (powers of two)"
        raise InputError(f"{field} has an unknown unit '{unit}'", value=text, allowed=allowed, next=hint)
    return round(_positive(number * scale, field, text, allowed))


def parse_bandwidth(text: str | float, *, field: str = "bandwidth") -> float:
    """Parse a data rate such as ``1008GB/s``, ``2TB/s`` or ``1e12`` into bytes per second."""
    allowed = "a positive rate such as 1008GB/s, 2TB/s or 1.0e12 (bytes per second)"
    number, unit = _split(text, field, allowed)
    if unit == "":
        return _positive(number, field, text, allowed)
    if not unit.endswith("/s"):
        raise InputError(
            f"{field} has an unknown unit '{unit}'",
            value=text,
            allowed=allowed,
            next="end the unit with /s",
        )
    return float(parse_bytes(f"{number!r}{unit[:-2].strip()}", field=field))


def parse_flops_per_s(text: str | float, *, field: str = "peak") -> float:
    """Parse a compute rate such as ``165TFLOP/s``, ``165 TFLOPS`` or ``165e12`` into FLOP/s."""
    allowed = "a positive rate such as 165TFLOP/s or 165e12 (FLOP per second)"
    number, unit = _split(text, field, allowed)
    prefix = re.sub(r"(FLOPS|FLOP/s|FLOPs/s|OPS|OP/s|OPs/s)$", "", unit)
    if (prefix == unit and unit != "") or prefix not in _DECIMAL:
        raise InputError(f"{field} has an unknown unit '{unit}'", value=text, allowed=allowed)
    return _positive(number * _DECIMAL[prefix], field, text, allowed)


def parse_count(text: str | float, *, field: str = "count") -> int:
    """Parse a count such as ``8e9``, ``8B`` or ``350M`` into a whole number."""
    allowed = "a positive count such as 8e9, 8B, 350M or 4096"
    number, unit = _split(text, field, allowed)
    scale = 1 if unit == "" else _SHORT_COUNT.get(unit.lower(), 0)
    if not scale:
        raise InputError(f"{field} has an unknown unit '{unit}'", value=text, allowed=allowed)
    value = _positive(number * scale, field, text, allowed)
    if value != round(value):
        raise InputError(f"{field} must be a whole number", value=text, allowed=allowed)
    return round(value)


def parse_duration(text: str | float, *, field: str = "duration") -> float:
    """Parse a time such as ``500ms``, ``40us`` or ``1.5`` into seconds."""
    allowed = "a positive time such as 500ms, 40us or 1.5s"
    number, unit = _split(text, field, allowed)
    if unit and unit not in _SECONDS:
        raise InputError(f"{field} has an unknown unit '{unit}'", value=text, allowed=allowed)
    return _positive(number * _SECONDS.get(unit, 1.0), field, text, allowed)


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    digits = 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, min(digits, 3))}f}"


def _scaled(value: float, unit: str, steps: tuple[tuple[float, str], ...]) -> str:
    for scale, prefix in steps:
        # 999.6e6 shown with three digits is "1,000 MB": the rounded figure picks the prefix.
        if abs(float(f"{value / scale:.3g}")) >= 1:
            return f"{_three_digits(value / scale)} {prefix}{unit}"
    return f"{_three_digits(value)} {unit}"


_SI_STEPS = ((PETA, "P"), (TERA, "T"), (GIGA, "G"), (MEGA, "M"), (KILO, "k"))
_IEC_STEPS = ((float(TIB), "Ti"), (float(GIB), "Gi"), (float(MIB), "Mi"), (float(KIB), "Ki"))


def format_bytes(value: float, *, binary: bool = False) -> str:
    """Bytes with three digits: ``13.5 GB``, or ``12.6 GiB`` with ``binary``."""
    return _scaled(value, "B", _IEC_STEPS if binary else _SI_STEPS)


def format_bandwidth(value: float) -> str:
    """Bytes per second with three digits: ``2.04 TB/s``."""
    return _scaled(value, "B/s", _SI_STEPS)


def format_flops(value: float) -> str:
    """A number of operations with three digits: ``13.5 GFLOP``."""
    return _scaled(value, "FLOP", _SI_STEPS)


def format_flops_per_s(value: float) -> str:
    """Operations per second with three digits: ``989 TFLOP/s``."""
    return _scaled(value, "FLOP/s", _SI_STEPS)


def format_count(value: float) -> str:
    """A count with three digits and the field's suffixes: ``6.74 B``, ``494 M``."""
    return _scaled(value, "", ((TERA, "T"), (GIGA, "B"), (MEGA, "M"), (KILO, "k"))).strip()


def format_seconds(value: float) -> str:
    """A time with three digits: ``6.61 ms``, ``43.2 µs``."""
    if value == 0:
        return "0 s"
    shown = float(f"{abs(value):.3g}")
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if shown >= scale:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{_three_digits(value / 1e-9)} ns"


def format_rate(value: float) -> str:
    """Tokens (or requests) per second with three digits: ``150``, ``13,300``."""
    return _three_digits(value)


def format_share(value: float) -> str:
    """A share of one as per cent: ``6.1 %``, ``28 %``."""
    percent = value * 100
    return f"{percent:.{0 if percent >= 9.95 else 1 if percent >= 0.95 else 2}f} %"
