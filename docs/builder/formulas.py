"""Formulas between dollars become MathML, which browsers draw themselves: no script, no font, no request."""

from __future__ import annotations

import re

from latex2mathml.converter import convert

_CODE = re.compile(r"(`+)(?:(?!\1).)+?\1", re.DOTALL)
_DISPLAY = re.compile(r"\$\$(?P<tex>[^$]+?)\$\$")
_INLINE = re.compile(r"(?<![\w$\\])\$(?P<tex>[^\s$](?:[^$\n]*[^\s$])?)\$(?![\w$])")


def with_formulas(text: str) -> str:
    """``$...$`` and ``$$...$$`` of prose as MathML; what stands between backticks is left alone."""
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\x00{len(kept) - 1}\x00"

    text = _CODE.sub(keep, text)
    text = _DISPLAY.sub(lambda match: _mathml(match["tex"], "block"), text)
    text = _INLINE.sub(lambda match: _mathml(match["tex"], "inline"), text)
    return re.sub("\x00(\\d+)\x00", lambda match: kept[int(match[1])], text)


def _mathml(tex: str, display: str) -> str:
    drawn = re.sub(r"\s*\n\s*", " ", convert(tex.strip(), display=display))
    # A long formula scrolls on narrow screens, so it must take the keyboard's focus.
    return drawn.replace("<math ", '<math tabindex="0" ', 1) if display == "block" else drawn
