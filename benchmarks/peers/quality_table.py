"""The part of the table that says how good the outputs are: real weights alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.peers.quality import ANSWER_TOKENS, LIMITS, OPENINGS

_COLUMNS = (
    "engine",
    "weights",
    "top-1 equal: answers (text)",
    "mean KL: answers, text (as prompt, in steps)",
    "perplexity of the text",
    "same text",
    "verdict",
)


def quality_parts(document: Mapping[str, Any]) -> list[str]:
    """Heading, sentence and table; nothing for random weights."""
    reference = document.get("reference") or {}
    text = reference.get("text")
    if text is None:
        return []
    limits = "; ".join(
        f"{weights} top-1 {limit.equal:g}, KL {limit.kl:g}" for weights, limit in LIMITS.items()
    )
    head = (
        f"Measured against {reference['by']} on the values that the file's blocks stand for: along a fixed "
        f"text of {text['tokens']} tokens, half of it as one prompt and half token by token (the reference's "
        f"perplexity: {text['perplexity']:.3f}), and along the reference's own greedy answers to "
        f"{len(OPENINGS)} prompts, {ANSWER_TOKENS} tokens each. KL is in nats, from the reference's. "
        "Same text: tokens of a greedy answer of the engine's own until it parts from the reference's. "
        f"Limits of top-1 on the answers and of KL on both: {limits}. "
        "The speed of a form that fails does not count."
    )
    lines = [table_line(*_COLUMNS), table_line(*["---"] * len(_COLUMNS))]
    if held := reference.get("held_against"):
        lines.append(_row(held["engine"], "the reference's own check", held))
    for engine, formats in document["engines"].items():
        for weights, facts in formats.items():
            lines.append(_row(engine, f"{weights}: {facts['label']}", facts))
    return ["## Quality", head, "\n".join(lines)]


def _row(engine: str, weights: str, facts: Mapping[str, Any]) -> str:
    if "why" in facts:
        return table_line(engine, weights, *["not to be had"] * 4, facts["why"])
    quality, same = facts.get("quality"), facts.get("same_text")
    equal = "not measured" if same is None else f"{same['equal_start']} of {same['tokens']}"
    if quality is None:
        return table_line(engine, weights, *["not told"] * 3, equal, "not told")
    text, answers = quality["text"], quality["answers"]
    halves = f"{quality['prompt']['kl']:.5f}, {quality['steps']['kl']:.5f}"
    return table_line(
        engine,
        weights,
        f"{answers['equal']:.2%} ({text['equal']:.2%})",
        f"{answers['kl']:.5f}, {text['kl']:.5f} ({halves})",
        f"{text['perplexity']:.3f}",
        equal,
        "passes" if quality["passed"] else "**fails**",
    )


def table_line(*cells: str) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"
