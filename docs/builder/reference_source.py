"""Reference of classes read from their source: what needs torch is described without importing it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from docs.builder.site_plan import ROOT

_SOURCES = ROOT / "src" / "rooflens"

# Module below rooflens.runtime -> its public classes.
_RUNTIME = {
    "backend": ("NativeBackend",),
    "sampling": ("SamplingParams",),
    "generate": ("Generation",),
    "parallel": ("TensorParallel",),
}


def runtime_reference() -> str:
    """The section about the runtime, as Markdown."""
    pieces = ["## Runtime\n\nIn `rooflens.runtime`; needs the extra `runtime`.\n"]
    for module, names in _RUNTIME.items():
        tree = ast.parse((_SOURCES / "runtime" / f"{module}.py").read_text(encoding="utf-8"))
        found = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        pieces += [_class(found[name]) for name in names]
    return "\n".join(pieces)


def _class(node: ast.ClassDef) -> str:
    fields = [f"    {ast.unparse(one)}" for one in node.body if isinstance(one, ast.AnnAssign)]
    start = next((one for one in _methods(node) if one.name == "__init__"), None)
    call = f"{node.name}(...)" if start is None else _call(node.name, start)
    shown = "\n".join([f"class {node.name}:", *fields]) if fields and start is None else call
    rows = "".join(
        f"| `{one.name}{'' if _is_property(one) else '()'}` | {_returns(one)} | {_summary(one)} |\n"
        for one in _methods(node)
        if not one.name.startswith("_") and ast.get_docstring(one)
    )
    members = f"\n| name | type | meaning |\n| :--- | :--- | :--- |\n{rows}" if rows else ""
    return f"### {node.name}\n\n```python\n{shown}\n```\n\n{_prose(ast.get_docstring(node) or '')}\n{members}"


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    return (one for one in node.body if isinstance(one, ast.FunctionDef))


def _call(name: str, function: ast.FunctionDef) -> str:
    """The call as it is written in code, one parameter a line."""
    given = function.args
    lines: list[str] = []
    plain = given.args[1:]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    lines += [_parameter(*pair) for pair in zip(plain, defaults, strict=True)]
    if given.kwonlyargs:
        lines.append("*")
        lines += [_parameter(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + ")"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + ("" if default is None else f" = {ast.unparse(default)}")


def _is_property(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(one).endswith("property") for one in function.decorator_list)


def _returns(function: ast.FunctionDef) -> str:
    text = "" if function.returns is None else ast.unparse(function.returns)
    return f"`{text}`".replace("|", "\\|") if text else ""


def _summary(function: ast.FunctionDef) -> str:
    first = (ast.get_docstring(function) or "").partition("\n\n")[0]
    return _prose(" ".join(first.split())).replace("|", "\\|")


def _prose(text: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL)
