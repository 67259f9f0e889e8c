"""One prompt answered here, with everything that was measured on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rooflens.display import Displayed
from rooflens.runtime.engine.engine import Engine
from rooflens.runtime.engine.request import Completion, collect
from rooflens.runtime.engine.settings import EngineSettings
from rooflens.runtime.profile.engine import EngineProfile, EngineProfiler
from rooflens.runtime.profile.run import RunProfile, RunProfiler
from rooflens.runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from rooflens.hardware.device import Device
    from rooflens.runtime.backend import NativeBackend
    from rooflens.runtime.engine.speculative import Proposer


@dataclass(frozen=True)
class Run(Displayed):
    """An answer and its profile.

    ``modules``: whether the modules were timed and the memory read; ``explained``: the account against a
    device, None where there is no device to compare with.
    """

    backend: NativeBackend
    answers: tuple[Completion, ...]
    profile: EngineProfile
    modules: bool
    explained: RunProfile | None

    @property
    def name(self) -> str:
        """The model as the user named it; its shape's name for random weights."""
        report = self.backend.report
        return self.backend.spec.name if report.format == "random" else report.origin

    @property
    def cancelled(self) -> bool:
        """Whether the answer was ended from outside."""
        return any(answer.finish_reason == "cancelled" for answer in self.answers)

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first over the time that they took; None below two tokens."""
        tpot = [request.tpot_s for request in self.profile.requests if request.tpot_s]
        return len(tpot) / sum(tpot) if tpot else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        backend = self.backend
        return {
            "schema": "rooflens.run/1",
            "model": self.name,
            "load": backend.report.to_dict(),
            "kv_dtype": backend.kv_dtype,
            "context": backend.context,
            "answers": [
                {
                    "index": answer.index,
                    "text": answer.text,
                    "token_ids": list(answer.token_ids),
                    "finish_reason": answer.finish_reason,
                    "prompt_tokens": answer.usage.prompt_tokens,
                    "output_tokens": answer.usage.output_tokens,
                }
                for answer in self.answers
            ],
            "decode_tokens_per_s": self.decode_tokens_per_s,
            "speculation": None if self.profile.guessing is None else self.profile.guessing.to_dict(),
            "profile": (self.explained or self.profile).to_dict(),
        }


def run_prompt(
    backend: NativeBackend,
    prompt: str | Sequence[int],
    params: SamplingParams,
    *,
    modules: bool = False,
    device: Device | None = None,
    settings: EngineSettings | None = None,
    proposer: Proposer | None = None,
    on_text: Callable[[str], object] | None = None,
) -> Run:
    """Answer ``prompt``; ``on_text`` gets the first answer's text as it comes, ``proposer`` guesses.

    ``modules``: time every module, read the memory after each step, and explain both against ``device``.
    Ctrl-C ends the answer after the step at hand: what was made and measured until then is kept. Raises as
    ``Engine.stream``, and UnsupportedError where ``device`` lacks a peak for the model's types.
    """
    engine = Engine(backend, settings, proposer=proposer)
    request = engine.prepare(prompt, params)
    watching = RunProfiler(engine, backend) if modules else None
    plain = EngineProfiler()
    if watching is None:
        engine.observers.append(plain)
    else:
        # First uses (of kernels, of memory) are no part of what is explained.
        watching.warm_up(prompt_tokens=len(request.prompt))
    deltas = []
    with watching or nullcontext():
        for delta in engine.stream(request.prompt, params):
            deltas.append(delta)
            if on_text is not None and delta.index == 0 and delta.text:
                on_text(delta.text)
    explained = watching.result(device) if watching is not None and device is not None else None
    profile = (plain if watching is None else watching.observer).profile()
    answers = tuple(collect(deltas, deltas[0].request_id))
    return Run(backend, answers, profile, modules, explained)
