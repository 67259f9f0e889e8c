"""One measured figure of an engine, whoever published it."""

from __future__ import annotations

from dataclasses import dataclass

from rooflens.units import KILO

PREFILL_RATE, DECODE_RATE, OUTPUT_RATE = "prefill_tok_s", "decode_tok_s", "output_tok_s"
TTFT, TPOT = "ttft_ms", "tpot_ms"
METRICS = (TTFT, TPOT, PREFILL_RATE, DECODE_RATE, OUTPUT_RATE)
"""Times in milliseconds; rates in tokens per second over all sequences of the batch."""


@dataclass(frozen=True)
class Measurement:
    """One measured figure. Lengths in tokens; ``batch`` is the sequences in flight (concurrency when served).

    ``value`` is in the metric's own unit. ``line`` counts the file's lines, the header being 1.
    """

    row_id: str
    line: int
    source_id: str
    device: str
    devices: int
    tp: int
    pp: int
    ep: int
    dp: int
    engine: str
    model: str
    weight_format: str
    kv_dtype: str
    batch: int
    input_tokens: int
    output_tokens: int
    context_start: int
    metric: str
    value: float
    grade: str
    flags: tuple[str, ...]
    notes: str

    @property
    def seconds(self) -> float:
        """The value as a time: of the first token, of a token of each sequence, or of the whole batch.

        Prefill rates become the time of all prompts, output rates the time of all outputs (prefill in it).
        """
        if self.metric in (TTFT, TPOT):
            return self.value / KILO
        if self.metric == DECODE_RATE:
            return self.batch / self.value
        tokens = self.input_tokens if self.metric == PREFILL_RATE else self.output_tokens
        return self.batch * tokens / self.value
