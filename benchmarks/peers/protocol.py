"""What the benchmark and its workers say to each other: one JSON object a line. Standard library only.

A worker runs in its engine's environment. It reads requests from standard input and answers on standard
output; whatever the engine itself prints goes to standard error. Times are taken inside the worker, around
the engine's own work, so that the protocol costs nothing.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TextIO

#: Tokens of one prompt chunk, where an engine lets us choose.
CHUNK_TOKENS = 512
#: Decode steps before those timed: a process that was just continued finds its code and threads cold, which
#: costs up to two steps and is no part of a stream of tokens.
WAKING_STEPS = 1
#: Most tokens a sequence may hold in any case.
LONGEST_TOKENS = 2304


@dataclass(frozen=True)
class Case:
    """One thing that is measured: ``kind`` is decode or prefill.

    decode: ``tokens`` steps of ``batch`` sequences that hold ``context`` tokens each. prefill: one prompt of
    ``context`` tokens. ``every``: long cases are measured in every second or third round alone.
    """

    kind: str
    context: int
    batch: int = 1
    tokens: int = 16
    every: int = 1

    @property
    def name(self) -> str:
        """As results call it: ``decode_64_b8``, ``prefill_512``."""
        return f"prefill_{self.context}" if self.kind == "prefill" else f"decode_{self.context}_b{self.batch}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Setup:
    """What a worker loads: ``path`` is the model in the form that the engine reads.

    ``format``: bf16, int8, int4, fp32 (the reference), or stored (a GGUF file as it is). ``batch``: most
    sequences of any case. ``variant`` and ``held`` are for Rooflens alone: kernels, and how weights are held.
    """

    path: str
    weights: str
    threads: int
    batch: int
    variant: str = ""
    held: str = ""


class Engine(Protocol):
    """What a worker module gives.

    An engine that tells its logits also has ``score(tokens, prompt, path)``: it writes logits (fp32, a row a
    token) after each of ``tokens``, the first ``prompt`` of which are read at once, the others one by one.
    """

    def load(self, setup: Setup) -> dict[str, Any]:
        """Load the model; returns versions, the KV cache's type and whatever else a reader should know."""
        ...

    def choose(self, tokens: Sequence[int], path: str | None) -> int:
        """The most likely token after ``tokens``; logits (fp32) go to ``path`` if the engine tells them."""
        ...

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The next ``count`` tokens by greedy choice."""
        ...

    def ready(self, case: Case) -> None:
        """Bring the engine to where ``run`` can be timed."""
        ...

    def run(self, case: Case) -> float:
        """Seconds of one decode step or of the prompt, greedy choice of the next token included."""
        ...


def prompt(count: int, *, vocabulary: int, seed: int = 0) -> list[int]:
    """Token ids that look random and are the same everywhere, without a library's generator."""
    state, tokens = 2654435761 * (seed + 1) % 2**32, []
    for _ in range(count):
        # Numerical Recipes' linear congruential generator; the low bits are not used.
        state = (1664525 * state + 1013904223) % 2**32
        tokens.append((state >> 8) % vocabulary)
    return tokens


def serve(engine: Engine) -> None:
    """Answer requests until standard input ends. An error is answered too: the worker lives on."""
    answers = _take_output()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": _dispatch(engine, request)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}".partition("\n")[0]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _dispatch(engine: Engine, request: dict[str, Any]) -> Any:
    name = request["do"]
    if name == "load":
        return engine.load(Setup(**request["setup"]))
    if name == "choose":
        return engine.choose(request["tokens"], request.get("path"))
    if name == "score":
        score = getattr(engine, "score", None)
        if score is not None:
            score(request["tokens"], request["prompt"], request["path"])
        return score is not None
    if name == "greedy":
        return engine.greedy(request["tokens"], request["count"])
    case = Case(**request["case"])
    if name == "ready":
        return engine.ready(case)
    if case.kind == "decode":
        engine.run(replace(case, tokens=WAKING_STEPS))
    return engine.run(case)


def _take_output() -> TextIO:
    """Standard output for answers alone: what an engine prints joins standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers
