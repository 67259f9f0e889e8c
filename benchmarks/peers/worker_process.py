"""A worker seen from the benchmark: started in its environment, stopped while others are measured."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.protocol import Case, Setup

ROOT = Path(__file__).resolve().parents[2]
#: What loading may take: converting weights, compiling kernels.
LOAD_S = 600.0
#: What one answer may take; a slow engine at the longest prompt stays far below.
ANSWER_S = 180.0
#: What reading the text for quality may take, token by token in fp32.
SCORE_S = 900.0


class WorkerError(Exception):
    """The worker answered with an error, died or fell silent: this engine's results end here."""


class Worker:
    """One engine's process and its group. While ``asleep`` the kernel runs none of its threads."""

    def __init__(
        self, python: Path, module: str, *, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("w", encoding="utf-8") as errors:
            # Engines must not call home, and must be found from the repository's root.
            variables = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **(environment or {})}
            self._process = subprocess.Popen(
                [str(python), "-m", f"benchmarks.peers.workers.{module}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=variables,
                cwd=ROOT,
                start_new_session=True,
            )
        self._rest = b""
        self.asleep = False

    @property
    def group(self) -> int:
        """The process group of the worker and its children."""
        return self._process.pid

    def load(self, setup: Setup) -> dict[str, Any]:
        """Load the model; what the engine says about itself."""
        answer = self._ask({"do": "load", "setup": vars(setup)}, LOAD_S)
        return dict(answer)

    def choose(self, tokens: Sequence[int], path: Path | None = None) -> int:
        """The most likely next token; logits go to ``path`` where the engine tells them."""
        request = {"do": "choose", "tokens": list(tokens), "path": str(path) if path else None}
        return int(self._ask(request, ANSWER_S))

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The next ``count`` tokens by greedy choice."""
        return list(self._ask({"do": "greedy", "tokens": list(tokens), "count": count}, ANSWER_S))

    def score(self, tokens: Sequence[int], prompt: int, path: Path) -> bool:
        """Logits after each token to ``path``, a row a token in fp32; False if the engine tells none."""
        request = {"do": "score", "tokens": list(tokens), "prompt": prompt, "path": str(path)}
        return bool(self._ask(request, SCORE_S))

    def ready(self, case: Case) -> None:
        """Bring the engine to where the case can be timed."""
        self._ask({"do": "ready", "case": case.to_dict()}, ANSWER_S)

    def run(self, case: Case) -> float:
        """Seconds of a decode step, or of the prompt."""
        return float(self._ask({"do": "run", "case": case.to_dict()}, ANSWER_S))

    def sleep(self) -> None:
        """Stop all its threads where they are, spinning ones too."""
        self._signal(signal.SIGSTOP)
        self.asleep = True

    def wake(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)
        self.asleep = False

    def close(self) -> None:
        """End the process and its children."""
        if self._process.poll() is None:
            self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError as error:
            raise WorkerError(self._last_words()) from error

    def _ask(self, request: dict[str, Any], limit_s: float) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise WorkerError(self._last_words()) from error
        answer = json.loads(self._line(limit_s))
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer["result"]

    def _line(self, limit_s: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            if not select.select([descriptor], [], [], limit_s)[0]:
                raise WorkerError(f"no answer in {limit_s:.0f} s")
            data = os.read(descriptor, 1 << 20)
            if not data:
                raise WorkerError(self._last_words())
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _last_words(self) -> str:
        """Why it died, as far as it said."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"the worker ended: {lines[-1].strip() if lines else 'it said nothing'}"
