"""NativeBackend: a checkpoint on a device, ready to run steps; and a plain loop that generates text."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rooflens.analysis.engines.native import BLOCK_TOKENS
from rooflens.errors import CapacityError, InputError
from rooflens.models.accounting import count_parameters, weights_bytes
from rooflens.models.read import read_model
from rooflens.models.spec import ModelSpec
from rooflens.runtime.batch import StepBatch
from rooflens.runtime.dtypes import COMPUTE_DTYPES, resolve_dtype
from rooflens.runtime.generate import Generation, generate
from rooflens.runtime.held import held_spec
from rooflens.runtime.kernels import kernels_for
from rooflens.runtime.kernels.steps import StepRunner
from rooflens.runtime.kv_cache import PagedKVCache
from rooflens.runtime.model import DecoderModel, Qwen2Model
from rooflens.runtime.open_model import OpenedModel, open_model
from rooflens.runtime.parallel import TensorParallel, all_ranks
from rooflens.runtime.report import LoadReport
from rooflens.runtime.sampling import SamplingParams
from rooflens.runtime.support import check_supported, check_weights_known
from rooflens.runtime.tensor_source import RandomSource, TensorSource
from rooflens.runtime.tokenizer import Tokenizer
from rooflens.runtime.weights import STORED, load_weights, parse_holding

#: Tokens the cache holds if nothing else is asked for and the model's context allows it.
DEFAULT_KV_TOKENS = 8192


class NativeBackend:
    """A model that runs here.

    spec: the model as held (types and formats of the weights in memory, for predictions); model; cache;
    tokenizer (None with random weights); device; dtype (of activations); context (longest sequence);
    report: what was loaded, converted, and which kernels are in use. With ``parallel`` the spec is still the
    whole model's; model, cache and report are this rank's part.
    """

    parallel: TensorParallel | None

    def __init__(
        self,
        model_path: str | os.PathLike[str] | OpenedModel,
        device: str | None = None,
        dtype: str | None = None,
        weights: str | None = None,
        *,
        kv_dtype: str | None = None,
        kv_tokens: int | None = None,
        context: int | None = None,
        kernels: str | None = None,
        parallel: TensorParallel | None = None,
    ) -> None:
        """Load a checkpoint: a path, an installed package's model, a Hub id, what ``open_model`` opened.

        ``dtype``: fp32, bf16, fp16 (default: as stored, where the device computes it well). ``weights``:
        int8, int8-channel, int4, int4-symmetric hold linears so; stored: as a GGUF file does, which is the
        default where no ``dtype`` is given. ``kv_dtype``: also int8. ``kernels``: eager, cpu, native, cuda.
        ``parallel``: the group of processes that run the model together.
        Raises a RooflensError that says what is wrong; memory is given back first.
        """
        self.parallel = parallel
        with all_ranks(parallel, "loading the model"):
            opened = model_path if isinstance(model_path, OpenedModel) else open_model(model_path)
            check_supported(opened.spec)
            check_weights_known(opened.spec)
            report = LoadReport(opened.name, opened.checkpoint.format, "", "")
            for note in (*opened.notes, *opened.checkpoint.problems):
                report.note(note)
            source = opened.source(report)
            try:
                self._load(opened.spec, source, report, device, dtype, weights, kernels, context)
            finally:
                source.close()
            self.tokenizer: Tokenizer | None = opened.tokenizer
            self._open_cache(kv_dtype, kv_tokens)
        self._check_ranks(weights)

    @classmethod
    def from_random(
        cls,
        model: ModelSpec | str | os.PathLike[str] | Mapping[str, Any],
        device: str | None = None,
        dtype: str | None = None,
        weights: str | None = None,
        *,
        seed: int = 0,
        kv_dtype: str | None = None,
        kv_tokens: int | None = None,
        context: int | None = None,
        kernels: str | None = None,
        parallel: TensorParallel | None = None,
    ) -> NativeBackend:
        """Random weights at the shape of ``model`` (a spec, or whatever ``read_model`` reads).

        For performance work: the text is noise. There is no tokenizer.
        """
        self = cls.__new__(cls)
        self.parallel = parallel
        with all_ranks(parallel, "loading the model"):
            spec = read_model(model)
            report = LoadReport(f"random weights, seed {seed}", "random", "", "")
            self._load(spec, RandomSource(seed=seed), report, device, dtype, weights, kernels, context)
            self.tokenizer = None
            self._open_cache(kv_dtype, kv_tokens)
        self._check_ranks(weights)
        return self

    def _load(
        self,
        spec: ModelSpec,
        source: TensorSource,
        report: LoadReport,
        device: str | None,
        dtype: str | None,
        weights: str | None,
        kernels: str | None,
        context: int | None,
    ) -> None:
        started = time.perf_counter()
        parallel = self.parallel
        self.device = resolve_device(device if parallel is None else parallel.resolve_device(device))
        self.dtype_name, why = resolve_dtype(dtype, stored=spec.dtype, device=self.device)
        self.dtype = COMPUTE_DTYPES[self.dtype_name]
        holding = parse_holding(weights)
        self.context = resolve_context(spec, context)
        report.compute_dtype, report.device = self.dtype_name, str(self.device)
        report.note(why)
        # A file's own formats, unless a type or another way is asked for.
        stored = weights == STORED or (weights is None and dtype is None)
        kind = Qwen2Model if spec.model_type == "qwen2" else DecoderModel
        own = spec
        if parallel is not None:
            own, source = parallel.rank_spec(spec), parallel.rank_source(spec, source)
        with memory_guard("the weights do not fit in memory"):
            made = kind(own, kernels_for(self.device, name=kernels), dtype=self.dtype, context=self.context)
            wide_bytes = count_parameters(own).total * self.dtype.itemsize
            made.kernels.expect(weights_bytes(own) if stored else wide_bytes)
            load_weights(made, source, report, holding=holding, device=self.device, stored=stored)
        if report.dequantized:
            count = sum(report.dequantized.values())
            report.note(f"{count} quantised tensors were expanded to {self.dtype_name} when they were loaded")
        if parallel is not None:
            parallel.connect(made, spec)
            report.note(f"tensor parallel: rank {parallel.rank} of {parallel.size}")
        report.load_s = time.perf_counter() - started
        self.model: DecoderModel = made.eval()
        self.report = report
        self.spec = held_spec(spec, made, dtype=self.dtype_name, head_copied=report.head_copied)

    def _check_ranks(self, weights: str | None) -> None:
        """Raise InputError where the ranks of ``parallel`` were given different models or settings."""
        if self.parallel is not None:
            facts = {
                "model": f"{self.spec.name}, {len(self.spec.layers)} layers of {self.spec.hidden_size}",
                "type": self.dtype_name,
                "way of holding weights": weights,
                "type of the KV cache": self.kv_dtype,
                "size of the KV cache": self.cache.blocks,
                "context": self.context,
            }
            self.parallel.check_same(facts)

    def _open_cache(self, kv_dtype: str | None, kv_tokens: int | None) -> None:
        self.kv_dtype = kv_dtype or self.dtype_name
        self.cache = self.new_cache(blocks=resolve_kv_blocks(kv_tokens, context=self.context))
        self._runner: StepRunner | None = None
        self._runner_of: PagedKVCache | None = None

    def new_cache(self, *, blocks: int) -> PagedKVCache:
        """A cache of this model's shape and type. Raises CapacityError where it does not fit."""
        return PagedKVCache(
            self.model.spec, blocks=blocks, dtype=self.kv_dtype, compute_dtype=self.dtype, device=self.device
        )

    def step(self, batch: StepBatch) -> Tensor:
        """Run one step: fp32 logits of the rows to sample, valid until the next step.

        Raises CapacityError where memory runs out.
        """
        with memory_guard("a step does not fit in memory"):
            runner = self.runner
            if (
                runner is not None
                and (self.model.watcher is None or runner.times_modules)
                and runner.takes(batch)
            ):
                return runner.run(batch)
            logits: Tensor = self.model(batch, self.cache)
        return logits

    @property
    def runner(self) -> StepRunner | None:
        """What runs whole steps over the present cache (the engine may bring its own), made at first use."""
        # Collectives are not captured: with several ranks every step runs module by module.
        if self.parallel is not None:
            return None
        if self._runner_of is not self.cache:
            self._runner_of = self.cache
            self._runner = self.model.kernels.steps(self.model, self.cache)
            self.report.kernels = self.model.kernels.describe()
        return self._runner

    def generate(
        self, prompts: Sequence[str | Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Generation]:
        """Answer every prompt, all together, without a scheduler: for tests and short scripts.

        Raises InputError for a prompt that is empty or out of the vocabulary and CapacityError for one
        that is too long, with both numbers, before any work. With ``parallel`` all ranks call this, and the
        first one's prompts and parameters are run on all.
        """
        if self.parallel is not None:
            prompts, params = self.parallel.agree(prompts, params)
        return generate(self, prompts, params)


def resolve_device(name: str | None) -> torch.device:
    """The device asked for, or the best one here. Raises InputError for one that is not there."""
    if name is None:
        if torch.cuda.is_available():
            name = "cuda"
        elif torch.backends.mps.is_available():
            name = "mps"
        else:
            name = "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"the device cannot be used: {reason}", value=name, allowed="cpu, cuda, mps"
        ) from None
    return device


def resolve_context(spec: ModelSpec, asked: int | None) -> int:
    """The longest sequence to be run: the model's own limit, or fewer. Raises InputError for more."""
    limit = spec.max_context
    if asked is None:
        return limit or DEFAULT_KV_TOKENS
    if asked < 1 or (limit is not None and asked > limit):
        raise InputError("context is not usable", value=asked, allowed=f"1 to {limit} tokens")
    return asked


def resolve_kv_blocks(asked_tokens: int | None, *, context: int) -> int:
    """Blocks of a cache for ``asked_tokens``; without them for one longest sequence, within reason."""
    tokens = min(context, DEFAULT_KV_TOKENS) if asked_tokens is None else asked_tokens
    return -(-tokens // BLOCK_TOKENS)


@contextmanager
def memory_guard(what: str) -> Iterator[None]:
    """Turn every allocator's way of failing into one CapacityError."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise CapacityError(what, next="use a smaller model, type or batch") from error
    except RuntimeError as error:
        if "allocate memory" not in str(error) and "not enough memory" not in str(error):
            raise
        raise CapacityError(what, next="use a smaller model, type or batch") from error
