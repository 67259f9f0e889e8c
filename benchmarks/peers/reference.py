"""What every engine is held against: outputs of the same weights in fp32, made once and kept on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import checks, quality
from benchmarks.peers.install import own_python
from benchmarks.peers.protocol import Setup
from benchmarks.peers.worker_process import Worker, WorkerError
from rooflens import __version__
from rooflens.runtime.open_model import open_model

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Passage:
    """Tokens with the reference's logits after each in a file; the first ``prompt`` are read at once."""

    tokens: list[int]
    prompt: int
    logits: Path

    def scored(self, worker: Worker, path: Path) -> quality.Rows | None:
        """A worker's logits against the reference's, all positions; None where its engine tells none.

        Raises WorkerError where what it told cannot be compared.
        """
        try:
            if not worker.score(self.tokens, self.prompt, path):
                return None
            expected, found = (quality.read_logits(file, len(self.tokens)) for file in (self.logits, path))
            return quality.compare(expected, found, self.tokens)
        except ValueError as error:
            raise WorkerError(str(error)) from error
        finally:
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Reading:
    """A real model's part: the fixed text, and the reference's own answers behind their prompts."""

    text: Passage
    answers: tuple[Passage, ...]

    def quality_of(self, worker: Worker, folder: Path) -> quality.Quality | None:
        """A worker's quality along text and answers; None where its engine tells no logits."""
        path = folder / "scored.f32"
        text = self.text.scored(worker, path)
        if text is None:
            return None
        answers = []
        for answer in self.answers:
            rows = answer.scored(worker, path)
            assert rows is not None
            answers.append(rows.since(answer.prompt - 1))
        half = self.text.prompt
        return quality.Quality(
            text=text.along(),
            prompt=text.along(slice(0, half)),
            steps=text.along(slice(half, None)),
            answers=quality.joined(answers).along(),
        )

    def verdict(self, worker: Worker, weights: str, folder: Path) -> dict[str, Any]:
        """Quality with its limits (None where no logits are told), and how far the greedy text is equal."""
        found = self.quality_of(worker, folder)
        first = self.answers[0]
        expected = first.tokens[first.prompt :]
        written = worker.greedy(first.tokens[: first.prompt], len(expected))
        return {
            "quality": None if found is None else found.judged(weights),
            "same_text": {"tokens": len(expected), "equal_start": quality.same_start(written, expected)},
        }


@dataclass(frozen=True)
class Reference:
    """Logits after each of the checks' prompts; ``reading`` is None for random weights."""

    prompts: list[list[int]]
    logits: list[NDArray[np.float32]]
    reading: Reading | None
    facts: dict[str, Any]


def make_reference(
    source: Path,
    vocabulary: int,
    pythons: Mapping[str, Path],
    home: Path,
    shape: str,
    *,
    threads: int,
    tell: Tell,
) -> Reference:
    """By transformers for a directory of random weights, by Rooflens's eager path for a GGUF file.

    The latter is itself held against transformers in fp32, where that reads the file. Raises WorkerError.
    """
    text, openings = ([], []) if source.is_dir() else _texts_of(source)
    prompts = checks.prompts_of(text) if text else checks.prompts(vocabulary)
    digest = _digest([prompts, text, openings, quality.ANSWER_TOKENS, source.stat().st_size])
    folder = home / "logits" / shape.replace("/", "__") / digest
    done = folder / "reference.json"
    if not done.exists():
        tell("reference logits in fp32")
        folder.mkdir(parents=True, exist_ok=True)
        facts = _make(source, prompts, text, openings, pythons, folder, threads=threads)
        done.write_text(json.dumps(facts), encoding="utf-8")
    facts = json.loads(done.read_text(encoding="utf-8"))
    answers = facts.pop("answers", [])
    reading = _reading(text, openings, answers, folder) if text else None
    return Reference(prompts, checks.kept_logits(folder, len(prompts)), reading, facts)


def _reading(text: list[int], openings: list[list[int]], answers: list[list[int]], folder: Path) -> Reading:
    return Reading(
        Passage(text, quality.prompt_part(text), folder / "text.f32"),
        tuple(
            Passage([*opening, *answer], len(opening), folder / f"answer-{index}.f32")
            for index, (opening, answer) in enumerate(zip(openings, answers, strict=True))
        ),
    )


def _make(
    source: Path,
    prompts: list[list[int]],
    text: list[int],
    openings: list[list[int]],
    pythons: Mapping[str, Path],
    folder: Path,
    *,
    threads: int,
) -> dict[str, Any]:
    theirs = not text and "transformers" in pythons
    worker = _fp32_worker(pythons["transformers"] if theirs else None, source, folder, threads=threads)
    try:
        checks.write_logits(worker, prompts, folder)
        if not text:
            return {"by": "transformers in fp32" if theirs else "Rooflens, eager in fp32"}
        answers = [worker.greedy(opening, quality.ANSWER_TOKENS) for opening in openings]
        reading = _reading(text, openings, answers, folder)
        for passage in (reading.text, *reading.answers):
            worker.score(passage.tokens, passage.prompt, passage.logits)
    finally:
        worker.close()
    expected = quality.read_logits(reading.text.logits, len(text))
    return {
        "by": "Rooflens, eager in fp32",
        "text": quality.compare(expected, expected, text).along().to_dict(),
        "answers": answers,
        "held_against": _held_against(reading, source, pythons, folder, threads=threads),
    }


def _held_against(
    reading: Reading, source: Path, pythons: Mapping[str, Path], folder: Path, *, threads: int
) -> dict[str, Any] | None:
    """What transformers in fp32 makes of the same file: another reader, another model, the same numbers."""
    if "transformers" not in pythons:
        return None
    worker = None
    try:
        worker = _fp32_worker(pythons["transformers"], source, folder, threads=threads)
        return {"engine": "transformers in fp32", **reading.verdict(worker, "bf16", folder)}
    except WorkerError as error:
        return {"engine": "transformers in fp32", "why": str(error)}
    finally:
        if worker is not None:
            worker.close()


def _fp32_worker(theirs: Path | None, source: Path, folder: Path, *, threads: int) -> Worker:
    """A loaded worker: transformers in ``theirs``, else our eager path."""
    module = "rooflens_worker" if theirs is None else "transformers_worker"
    worker = Worker(own_python() if theirs is None else theirs, module, log=folder / f"{module}.log")
    try:
        worker.load(Setup(str(source), "fp32", threads, 1, variant="eager" if theirs is None else ""))
    except WorkerError:
        worker.close()
        raise
    return worker


def _texts_of(source: Path) -> tuple[list[int], list[list[int]]]:
    """Tokens of the fixed text and of the openings, as a chat where the model has a template."""
    tokenizer = open_model(source).tokenizer
    assert tokenizer is not None, "a GGUF file of a package has a tokenizer"
    text = tokenizer.encode(quality.TEXT.read_text(encoding="utf-8"))[: quality.MOST_TOKENS]
    if tokenizer.chat_template is None:
        return text, [tokenizer.encode(opening) for _, opening in quality.OPENINGS]
    chats = ([{"role": "user", "content": question}] for question, _ in quality.OPENINGS)
    return text, [tokenizer.encode_chat(chat) for chat in chats]


def _digest(parts: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps([__version__, *parts]).encode()).hexdigest()[:12]
