"""One prompt answered here, with everything that was measured on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rooflens.runtime.engine.engine import Engine
from rooflens.runtime.engine.request import Completion, collect
from rooflens.runtime.engine.settings import EngineSettings
from rooflens.runtime.profile.engine import EngineProfile, EngineProfiler
from rooflens.runtime.profile.memory import MemoryProfiler
from rooflens.runtime.profile.modules import ModuleProfiler
from rooflens.runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from rooflens.runtime.backend import NativeBackend


@dataclass(frozen=True)
class Run:
    """An answer and its profile; ``modules``: whether the modules were timed too."""

    backend: NativeBackend
    params: SamplingParams
    answers: tuple[Completion, ...]
    profile: EngineProfile
    modules: bool

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
            "profile": self.profile.to_dict(),
        }


def run_prompt(
    backend: NativeBackend,
    prompt: str | Sequence[int],
    params: SamplingParams,
    *,
    modules: bool = False,
    settings: EngineSettings | None = None,
    on_text: Callable[[str], object] | None = None,
) -> Run:
    """Answer ``prompt``; ``on_text`` gets the first answer's text as it comes.

    ``modules``: time every module and read the memory after each step. Ctrl-C ends the answer after the
    step at hand: what was made and measured until then is kept. Raises as ``Engine.stream``.
    """
    watched = ModuleProfiler(backend.model, device=backend.device) if modules else None
    memory = MemoryProfiler(
        weights_bytes=backend.report.held_bytes,
        bytes_per_block=backend.cache.bytes_per_block,
        device=backend.device,
    )
    profiler = EngineProfiler(modules=watched, memory=memory if modules else None)
    # Waiting for the device between model and sampler tells their times apart.
    engine = Engine(backend, settings or EngineSettings(synchronize=True), observers=[profiler])
    deltas = []
    with watched or nullcontext():
        for delta in engine.stream(prompt, params):
            deltas.append(delta)
            if on_text is not None and delta.index == 0 and delta.text:
                on_text(delta.text)
    request_id = deltas[0].request_id
    return Run(backend, params, tuple(collect(deltas, request_id)), profiler.profile(), modules)
