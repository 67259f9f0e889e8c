"""One page: its Python runs, its commands are answered, its values and formulas are put in."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from docs.builder.console import answer, check_commands
from docs.builder.formulas import with_formulas
from docs.builder.source import BuildError, Fence, Part, Prose, indented, parts
from docs.builder.values import formatters

VALUE = re.compile(r"\{\{(?P<code>.+?)\}\}", re.DOTALL)
_ALONE = re.compile(r"^(?P<indent>[ \t]*)\{\{(?P<code>(?:(?!\}\}).)+)\}\}[ \t]*$", re.MULTILINE | re.DOTALL)
# Chinese has no spaces, so a line that is broken in the source must not put one on the page.
_FULL_WIDTH = "[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef\u201c\u201d]"
_BROKEN = re.compile(rf"(?<={_FULL_WIDTH})\n[ \t]*(?={_FULL_WIDTH})")

# ```python WORD: what happens to a block.
SHOWN, HIDDEN, CHECK, STATIC = "", "hidden", "check", "static"
_LONGEST = 96  # characters of a line of code; the page shows about so many without scrolling
_COLUMNS = 84  # of what commands print


@dataclass
class Page:
    """A page being built: where it comes from, its language, and the names its code has made.

    Where it does not ``run``, Python and braces are left as they stand; commands are still checked.
    """

    name: str
    language: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    runs: bool = True
    namespace: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.namespace = {"__name__": "page", **self.extra}

    def built(self, text: str) -> str:
        """The page as plain Markdown. Raises BuildError with page and line for anything that fails."""
        return "".join(self._part(part) for part in parts(text, self.name))

    def _part(self, part: Part) -> str:
        if isinstance(part, Prose):
            return self._prose(part)
        if part.lang == "python":
            return self._python(part)
        if part.lang == "console":
            return self._console(part)
        return part.markdown()

    def _prose(self, part: Prose) -> str:
        def value(match: re.Match[str]) -> str:
            return self._value(match["code"], _line(part, match.start()))

        def block(match: re.Match[str]) -> str:
            return indented(value(match), match["indent"])

        text = VALUE.sub(value, _ALONE.sub(block, part.text)) if self.runs else part.text
        text = with_formulas(text)
        return _BROKEN.sub("", text) if self.language == "zh" else text

    def _value(self, code: str, line: int) -> str:
        """``expression | format | mark``: the value, passed through the functions after it."""
        # Formats win over the names of the page's own code, which may well call something ``size``.
        names = {**self.namespace, **self.extra, **formatters(self.language)}
        first, *filters = [piece.strip() for piece in code.split(" | ")]

        def evaluated() -> Any:
            result = eval(first, names)
            for name in filters:
                result = eval(name, names)(result)
            return result

        result = self._run(evaluated, line)
        if isinstance(result, float) or callable(result):
            raise BuildError(f"{self.name}:{line}: '{code.strip()}' has no format")
        return str(result)

    def _python(self, part: Fence) -> str:
        kind = part.words[0] if part.words else SHOWN
        if kind not in (SHOWN, HIDDEN, CHECK, STATIC):
            raise BuildError(f"{self.name}:{part.line}: '{kind}' is no kind of Python block")
        if kind == STATIC or not self.runs:
            self._run(lambda: ast.parse(part.body), part.line)
            return part.markdown()
        printed = self._printed(part)
        if kind != SHOWN:
            return ""
        if max(map(len, part.body.splitlines())) > _LONGEST:
            raise BuildError(f"{self.name}:{part.line}: a line of this block is too long to be shown")
        if not printed:
            return part.markdown()
        # The trailing class joins what was printed to the block that printed it.
        output = f"```{{.text .printed}}\n{printed.rstrip()}\n```\n"
        return part.markdown() + "\n" + indented(output, part.indent)

    def _printed(self, part: Fence) -> str:
        out = io.StringIO()

        def run() -> None:
            code = compile("\n" * part.line + part.body, self.name, "exec")
            with contextlib.redirect_stdout(out):
                exec(code, self.namespace)

        self._run(run, part.line)
        return out.getvalue()

    def _console(self, part: Fence) -> str:
        where = f"{self.name}:{part.line}"
        if "run" not in part.words:
            check_commands(part.body, where)
            return part.markdown()
        first, until = _word(part, "from"), _word(part, "until")
        shown = answer(part.body, where, columns=_COLUMNS, first=first, until=until)
        output = f"```{{.text .printed}}\n{shown.rstrip()}\n```\n"
        return part.markdown() + "\n" + indented(output, part.indent)

    def _run(self, call: Callable[[], Any], line: int) -> Any:
        try:
            return call()
        except BuildError:
            raise
        except Exception as error:
            inner = [
                frame.lineno
                for frame in traceback.extract_tb(error.__traceback__)
                if frame.filename == self.name
            ]
            at = inner[-1] if inner and inner[-1] else line
            raise BuildError(f"{self.name}:{at}: {type(error).__name__}: {error}") from error


def _line(part: Prose, offset: int) -> int:
    return part.line + part.text.count("\n", 0, offset)


def _word(part: Fence, name: str) -> str | None:
    """``until=What_if``: how the first line that is not shown begins; an underscore is a space."""
    start = f"{name}="
    found = (word.removeprefix(start).replace("_", " ") for word in part.words if word.startswith(start))
    return next(found, None)
