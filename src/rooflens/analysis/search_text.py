"""What a search says of each option, in English as in its JSON; other languages have the same keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

REASONS: dict[str, str] = {
    "cheapest": "the cheapest that meets every limit",
    "price": "{ratio} times the price of the first",
    "price.same": "the price of the first",
    "devices": "{devices} devices where the first needs {first}",
    "devices.same": "as many devices as the first",
    "token": "{ratio} times as fast per token",
    "first": "first tokens {ratio} times as soon",
    "carries": "carries {ratio} times as much",
    "dominated": "no better in anything",
    "near": "{limit} is at {share} of its limit",
    "fewer": "with {devices} fewer of these devices {limit} would be at {share} of its limit",
    "fewer.enough": "{devices} fewer of these devices would do too",
    "fewer.memory": "with {devices} fewer of these devices it does not fit in memory",
    "least": "one instance needs all of its devices",
}
LIMITS: dict[str, str] = {"ttft": "TTFT", "tpot": "TPOT", "rate": "the rate", "memory": "memory"}
VERDICTS: dict[str, str] = {
    "kills.alone": "{limit} kills it: {count} configurations fail nothing else; the best reaches {best}.",
    "kills.together": "No single limit kills it: every configuration fails at least two of them.",
    "kills.memory": "Memory kills it: nothing fits.",
    "relaxed": "{limit} 10 % looser ({loose}) would let {count} pass.",
    "relaxed.none": "{limit} 10 % looser would let none pass.",
    "relaxed.memory": "10 % more memory would let {count} pass.",
    "relaxed.memory.none": "10 % more memory would let none pass.",
}


@dataclass(frozen=True)
class Reason:
    """One thing to say, by key, with what is put into it."""

    key: str
    facts: dict[str, str] = field(default_factory=dict)

    def english(self) -> str:
        """The phrase in English."""
        facts = {name: LIMITS.get(value, value) for name, value in self.facts.items()}
        if self.key in REASONS:
            return REASONS[self.key].format(**facts)
        sentence = VERDICTS[self.key].format(**facts)
        return sentence[0].upper() + sentence[1:]


def in_english(reasons: Sequence[Reason]) -> str:
    """All of them in one line."""
    return "; ".join(reason.english() for reason in reasons)
