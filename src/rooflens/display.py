"""How results show themselves in a notebook: as tables and charts instead of a dataclass's fields.

Nothing of it is imported before a notebook asks: the mixin is three methods, the rest is in
`rooflens.report.notebook`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from rooflens.errors import InputError

Theme = Literal["auto", "light", "dark"]


@dataclass(frozen=True)
class DisplayOptions:
    """How notebooks show results. ``lang`` is ``en`` or ``zh`` (None: the locale's); without ``charts``
    only tables are shown; ``theme`` is that of the charts, ``auto`` follows the notebook's."""

    lang: str | None = None
    charts: bool = True
    theme: Theme = "auto"


_current = DisplayOptions()


def display_options(
    *, lang: str | None = None, charts: bool | None = None, theme: Theme | None = None
) -> DisplayOptions:
    """Change what is given, and return how results are shown from now on.

    Raises InputError for a language or a theme that there is none of.
    """
    global _current
    if lang is not None:
        from rooflens.report.words import language

        lang = language(lang)
    if theme is not None and theme not in get_args(Theme):
        raise InputError("theme is not known", value=theme, allowed=", ".join(get_args(Theme)))
    given: dict[str, Any] = {"lang": lang, "charts": charts, "theme": theme}
    _current = replace(_current, **{name: value for name, value in given.items() if value is not None})
    return _current


class Displayed:
    """A result that a notebook shows as tables and charts, and IPython's terminal as tables."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # IPython takes a class's own __repr__, which a dataclass has, before what it inherits.
        cls._repr_pretty_ = Displayed._repr_pretty_  # type: ignore[method-assign]

    def _repr_html_(self) -> str:
        from rooflens.report.notebook import as_html

        return as_html(self, display_options())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        from rooflens.report.notebook import as_text

        printer.text(repr(self) if cycle else as_text(self, display_options()))
