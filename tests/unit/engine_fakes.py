"""A backend without a model: its logits are a function of the tokens that it reads from its cache.

Tokens are bytes of UTF-8, so that text, characters of several tokens and stop strings are real.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

from rooflens.runtime.batch import StepBatch
from rooflens.runtime.engine.engine import Engine
from rooflens.runtime.tokenizer import Tokenizer

BYTES = 256
EOS = 256
VOCABULARY = 257
BLOCK_TOKENS = 4


def byte_tokenizer(*, end: str = "<end>") -> Tokenizer:
    """One token for each byte, and an end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    rust = RustTokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    rust.add_special_tokens([end])
    return Tokenizer(rust, eos_ids=[EOS])


class FakeCache:
    """Tokens instead of keys and values."""

    def __init__(self, blocks: int, block_tokens: int = BLOCK_TOKENS) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.slots = torch.full((blocks, block_tokens), -1)

    def copy_blocks(self, source: Tensor, target: Tensor) -> None:
        self.slots[target] = self.slots[source]


class FakeBackend:
    """``script``: what to say after which prompt, as text; otherwise noise that depends on every token."""

    def __init__(
        self,
        *,
        blocks: int = 64,
        context: int = 200,
        script: dict[str, str] | None = None,
        tokenizer: bool = True,
        seed: int = 0,
    ) -> None:
        self.spec = SimpleNamespace(vocab_size=VOCABULARY)
        self.tokenizer = byte_tokenizer() if tokenizer else None
        self.device = torch.device("cpu")
        self.context = context
        self.cache = FakeCache(blocks)
        self.seed = seed
        self.batches: list[StepBatch] = []
        self.error: BaseException | None = None
        coder = byte_tokenizer()
        self.scripts = [
            (coder.encode(prompt), [*coder.encode(answer), EOS]) for prompt, answer in (script or {}).items()
        ]

    def step(self, batch: StepBatch) -> Tensor:
        self.batches.append(batch)
        if self.error is not None:
            raise self.error
        flat = self.cache.slots.view(-1)
        flat[batch.slot_mapping] = batch.token_ids
        rows, row = {}, 0
        for index, length in enumerate(batch.query_lengths):
            start = batch.sequence_lengths[index] - length
            for offset in range(length):
                rows[row] = (index, start + offset + 1)
                row += 1
        if not batch.sample_rows.numel():
            return torch.empty(0, VOCABULARY)
        return torch.stack([self._logits(batch, *rows[row]) for row in batch.sample_rows.tolist()])

    def _logits(self, batch: StepBatch, index: int, length: int) -> Tensor:
        table = batch.block_tables[index, : -(-length // BLOCK_TOKENS)]
        seen = self.cache.slots[table].flatten()[:length].tolist()
        assert -1 not in seen, "the model reads a slot that nobody wrote"
        return logits_after(seen, self.scripts, self.seed)


def logits_after(
    tokens: Sequence[int], scripts: Sequence[tuple[list[int], list[int]]] = (), seed: int = 0
) -> Tensor:
    """Pure: the same tokens, the same logits."""
    for prompt, answer in scripts:
        said = list(tokens[len(prompt) :])
        if list(tokens[: len(prompt)]) == prompt and said == answer[: len(said)] and len(said) < len(answer):
            logits = torch.zeros(VOCABULARY)
            logits[answer[len(said)]] = 50.0
            return logits
    generator = torch.Generator().manual_seed(hash((seed, *tokens)) % 2**31)
    logits = 3 * torch.randn(VOCABULARY, generator=generator)
    logits[EOS] = -50.0
    return logits


def outputs(engine: Engine, prompts: Sequence[str | list[int]], params: object) -> list[tuple[int, ...]]:
    """Token ids of all answers."""
    return [completion.token_ids for completion in engine.generate(prompts, params)]  # type: ignore[arg-type]
