"""A measurement as steps: which steps of the engine its time consists of, and how many of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rooflens.analysis.measurement import DECODE_RATE, OUTPUT_RATE, PREFILL_RATE, TPOT, TTFT, Measurement
from rooflens.analysis.parallelism import Layout
from rooflens.analysis.workload import LLAMA_CPP_CHUNK
from rooflens.hardware.device import Device
from rooflens.models.spec import ModelSpec


class Kind(Enum):
    """What a measurement is about, which decides how it is predicted and judged."""

    DECODE_1 = "decode, batch 1"
    DECODE = "decode, batched"
    SERVED_TPOT = "TPOT, served"
    PREFILL = "prefill"
    SERVED_TTFT = "TTFT, queued"


@dataclass(frozen=True)
class Term:
    """``times`` steps of ``sequences`` that each run ``new_tokens`` after ``context`` cached ones.

    ``role`` is empty for what the measurement certainly contains; ``mix`` for prefills of other requests
    between its decode steps; ``queue`` for prefills it waits for.
    """

    times: float
    sequences: float
    new_tokens: float
    context: float
    role: str = ""


@dataclass(frozen=True)
class Case:
    """A measurement with everything it names resolved."""

    row: Measurement
    kind: Kind
    spec: ModelSpec
    device: Device
    layout: Layout
    kv_dtype: str
    terms: tuple[Term, ...]

    @property
    def sparse(self) -> bool:
        """Whether the model has routed experts."""
        from rooflens.models.spec import MixtureOfExperts

        return any(isinstance(group.layer.mlp, MixtureOfExperts) for group in self.spec.groups)


# llama.cpp runs prompts in chunks of n_ubatch tokens, so the weights are read once a chunk.
CHUNKS = {"llama.cpp": LLAMA_CPP_CHUNK, "ollama": LLAMA_CPP_CHUNK}


def kind_of_row(row: Measurement) -> Kind:
    """Batch-1 latencies and static batches are unqueued; metrics of a serving client at concurrency > 1 are
    not."""
    if row.metric == PREFILL_RATE or (row.metric == TTFT and row.batch == 1):
        return Kind.PREFILL
    if row.metric == TTFT:
        return Kind.SERVED_TTFT
    if row.batch == 1:
        return Kind.DECODE_1
    return Kind.SERVED_TPOT if row.metric == TPOT else Kind.DECODE


def terms_of(row: Measurement) -> tuple[Term, ...]:
    """The steps that make up the measured time (``Measurement.seconds``)."""
    sequences = -(-row.batch // row.dp)
    out, prompt = row.output_tokens, row.input_tokens
    middle = row.context_start + prompt + max(0, out - 1) / 2
    step = Term(1, sequences, 1, middle)
    if row.metric == DECODE_RATE:
        return (step,)
    if row.metric == PREFILL_RATE:
        return _prefill(row, sequences, row.context_start)
    if row.metric == OUTPUT_RATE:
        return (*_prefill(row, sequences, 0), Term(max(0, out - 1), sequences, 1, middle))
    if row.metric == TPOT:
        mixed = (
            [] if sequences == 1 or not prompt else _prefill(row, 1, 0, (sequences - 1) / max(1, out), "mix")
        )
        return (step, *mixed)
    queued = [] if sequences == 1 else _prefill(row, 1, 0, (sequences - 1) / 2, "queue")
    return (*_prefill(row, 1, 0), *queued)


def _prefill(
    row: Measurement, sequences: float, context: float, times: float = 1, role: str = ""
) -> tuple[Term, ...]:
    chunk = CHUNKS.get(row.engine.lower())
    tokens = row.input_tokens
    if chunk is None or tokens <= chunk:
        return (Term(times, sequences, tokens, context, role),)
    whole = tokens / chunk
    # The mean chunk: pairs of queries and keys add up to those of the whole prompt.
    return (Term(times * whole, sequences, chunk, context + (tokens - chunk) / 2, role),)


def bound_terms(row: Measurement) -> tuple[Term, ...]:
    """The steps that the measured time contains at the very least.

    A served request shares its decode steps with others, but how many were decoding at the time is not
    known; alone it cannot be faster. Its first token takes its own prompt at least.
    """
    if row.metric == TPOT:
        middle = row.context_start + row.input_tokens + max(0, row.output_tokens - 1) / 2
        return (Term(1, 1, 1, middle),)
    return tuple(term for term in terms_of(row) if not term.role)


def groups(cases: Sequence[Case]) -> dict[tuple[ModelSpec, str, Layout, str], list[int]]:
    """Indices of the cases that one vectorised call can price: same model, device, layout and cache."""
    found: dict[tuple[ModelSpec, str, Layout, str], list[int]] = {}
    for index, case in enumerate(cases):
        found.setdefault((case.spec, case.device.id, case.layout, case.kv_dtype), []).append(index)
    return found
