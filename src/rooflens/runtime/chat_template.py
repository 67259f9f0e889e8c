"""Chat templates, run in a sandbox: a checkpoint's template may format text and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rooflens.errors import InputError

Message = Mapping[str, Any]


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's part for training; here it only lets its body through."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """See jinja2's Extension."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Refused(TemplateError):
    """The template itself refused the messages."""


def _raise_exception(message: str) -> None:
    raise _Refused(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Not jinja2's own filter, which escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class ChatTemplate:
    """A checkpoint's template: messages in, the prompt's text out."""

    def __init__(self, source: str, *, special_tokens: Mapping[str, str]) -> None:
        """``special_tokens`` (``bos_token``, ``eos_token``, ...) are given to the template by name.

        Raises InputError where the template cannot be read.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise InputError(f"the chat template cannot be read: {error}") from None

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt for ``messages`` ({"role", "content"}); ``variables`` are passed on (tools and others).

        Raises InputError where the template refuses them or leaves its sandbox.
        """
        try:
            return self._template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                **{"tools": None, "documents": None, **self._special_tokens, **variables},
            )
        except _Refused as error:
            raise InputError(f"the chat template refuses these messages: {error}") from None
        except SecurityError as error:
            raise InputError(f"the chat template tries to leave its sandbox: {error}") from None
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(f"the chat template fails on these messages: {error}") from None
