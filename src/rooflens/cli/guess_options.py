"""Options of speculative decoding: who guesses, and how many tokens a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rooflens.cli.runtime_options import choose_model, whole_option
from rooflens.errors import InputError

if TYPE_CHECKING:
    from rooflens.runtime.backend import NativeBackend
    from rooflens.runtime.engine.speculative import Proposer

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_GUESSES = 4
MOST_GUESSES = 63
"""A step of 64 rows is the longest that kernels run as a decode step."""


def draft_options(function: F) -> F:
    """Which model guesses, and how it is held."""
    decorators: list[Callable[[F], F]] = [
        click.option("--draft", metavar="MODEL", help="Guess with this model, of the same vocabulary."),
        click.option(
            "--draft-weights", metavar="FORMAT", help="Hold its linears as --weights would. [stored]"
        ),
    ]
    return _all(decorators, function)


def guess_options(function: F) -> F:
    """Guesses while answering: from the text so far, or of a draft model."""
    decorators: list[Callable[[F], F]] = [
        whole_option("--prompt-lookup", help="Guess N tokens a step from the text so far."),
        draft_options,
        whole_option(
            "--draft-tokens", help=f"Tokens that the draft model guesses a step. [{DEFAULT_GUESSES}]"
        ),
    ]
    return _all(decorators, function)


def _all(decorators: list[Callable[[F], F]], function: F) -> F:
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def check_guesses(tokens: int, *, option: str) -> int:
    """``tokens``, if a step can check so many. Raises InputError."""
    if tokens > MOST_GUESSES:
        raise InputError(f"{option} is more than a step checks", value=tokens, allowed=f"1 to {MOST_GUESSES}")
    return tokens


def take_guess_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take the values of ``guess_options`` out of ``options``. Raises InputError for ones that contradict."""
    names = ("prompt_lookup", "draft", "draft_weights", "draft_tokens")
    given = {name: options.pop(name) for name in names}
    if given["draft"] is None:
        for name in ("draft_weights", "draft_tokens"):
            if given[name] is not None:
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option} has a meaning with --draft only", value=given[name])
    elif given["prompt_lookup"] is not None:
        raise InputError("both --prompt-lookup and --draft are given", next="leave one of them out")
    for name in ("prompt_lookup", "draft_tokens"):
        if given[name] is not None:
            check_guesses(given[name], option=f"--{name.replace('_', '-')}")
    return given


def open_draft(
    model: str, target: NativeBackend, options: dict[str, Any], weights: str | None
) -> NativeBackend:
    """Load the model that guesses for ``target``: same device and context, random weights where it has them.

    ``options``: those of the target, as given. Raises a RooflensError for what cannot be loaded, and
    InputError for another vocabulary.
    """
    from rooflens.runtime.engine.speculative import check_same_tokens

    same = ("random_weights", "device", "kernels", "threads", "kv_tokens")
    own = {name: options[name] for name in same} | {"model": model, "weights": weights}
    # Held as it is stored unless asked otherwise; in the target's type where that is given.
    own |= {"dtype": options["dtype"], "kv_dtype": None, "context": None}
    chosen = choose_model(own)
    limit = chosen.spec.max_context
    chosen.settings["context"] = target.context if limit is None else min(limit, target.context)
    draft = chosen.load()
    check_same_tokens(draft, target)
    return draft


def open_proposer(given: dict[str, Any], target: NativeBackend, options: dict[str, Any]) -> Proposer | None:
    """Who guesses, as ``take_guess_options`` found it; None for nobody."""
    from rooflens.runtime.engine.speculative import DraftModel, PromptLookup

    if given["prompt_lookup"] is not None:
        return PromptLookup(tokens=given["prompt_lookup"])
    if given["draft"] is None:
        return None
    draft = open_draft(given["draft"], target, options, given["draft_weights"])
    return DraftModel(draft, target=target, tokens=given["draft_tokens"] or DEFAULT_GUESSES)
