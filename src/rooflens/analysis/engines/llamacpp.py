"""llama.cpp and ollama: a cache of cells that is allocated whole at start, windows of their own size.

Every sequence has max_model_len cells (rounded up), whether it uses them or not; a windowed layer has
window + batch cells. The token table stays in host memory. Source: llama.cpp's KV caches and context,
2024 to 2026; buffer sizes as its start-up prints them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rooflens.analysis.engines.layer_caches import (
    LayerCache,
    fixed_bytes,
    growth_bytes_per_token,
    logical_bytes,
    longest_length,
    mixer_cache,
    per_head_latent,
)
from rooflens.analysis.ledger import CacheGroup, CacheReport, Ledger, LedgerInput, LedgerRow
from rooflens.errors import InputError, UnsupportedError
from rooflens.models.accounting import embedding_bytes, weights_bytes
from rooflens.models.spec import LatentAttention, ModelSpec, Recurrent
from rooflens.units import GIB, MIB

CELL_PADDING = 256
DEFAULT_UBATCH = 512
FP32_BYTES = 4
# Builds from which latent attention keeps one latent a token, and windowed layers only their window.
LATENT_BUILD = 5129
WINDOW_BUILD = 5427
# ollama releases with those builds inside.
OLLAMA_LATENT = (0, 7)
OLLAMA_WINDOW = (0, 9)
CONTEXT_BYTES = (GIB // 4, GIB // 2, GIB)
# Model types whose window llama.cpp honours; for others (Mistral 7B v0.1) it keeps and reads every token.
WINDOWED_TYPES = (
    "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "gpt_oss",
    "llama4", "llama4_text", "cohere2", "exaone4", "olmo3", "smallthinker", "afmoe", "mimo_v2_flash",
    "step3p5", "step3p7",
)  # fmt: skip


@dataclass(frozen=True)
class Build:
    """What a build does: which cache latent attention and windows have, and its name."""

    name: str
    latent: bool
    windows: bool


def llamacpp_build(text: str | None) -> Build:
    """The rules of a build such as ``b4800``; the newest where none is named. Raises InputError."""
    if text is None:
        return Build("llama.cpp", latent=True, windows=True)
    match = re.fullmatch(r"b?(\d{3,6})", text.strip())
    if match is None:
        raise InputError(
            "engine_version is not a llama.cpp build", value=text, allowed="a build number such as b5427"
        )
    number = int(match[1])
    return Build(f"llama.cpp b{number}", number >= LATENT_BUILD, number >= WINDOW_BUILD)


def ollama_build(text: str | None) -> Build:
    """The rules of an ollama release such as ``0.5.7``; the newest where none is named. Raises InputError."""
    if text is None:
        return Build("ollama", latent=True, windows=True)
    match = re.match(r"v?(\d+)\.(\d+)", text.strip())
    if match is None:
        raise InputError(
            "engine_version is not an ollama release", value=text, allowed="a release such as 0.9.0"
        )
    release = (int(match[1]), int(match[2]))
    return Build(f"ollama {text}", release >= OLLAMA_LATENT, release >= OLLAMA_WINDOW)


def llamacpp_ledger(given: LedgerInput) -> Ledger:
    """The ledger of llama.cpp with all layers on the device; ``engine_version`` is a build number."""
    return _Engine(given, llamacpp_build(given.engine_version)).ledger()


def ollama_ledger(given: LedgerInput) -> Ledger:
    """The ledger of ollama, which runs llama.cpp's cache; ``engine_version`` is ollama's."""
    return _Engine(given, ollama_build(given.engine_version)).ledger()


def padded(cells: int) -> int:
    """Cells as allocated: a multiple of 256."""
    return -(-cells // CELL_PADDING) * CELL_PADDING


@dataclass(frozen=True)
class _Engine:
    given: LedgerInput
    build: Build

    @property
    def honours_windows(self) -> bool:
        return self.given.spec.model_type in WINDOWED_TYPES

    @property
    def ubatch(self) -> int:
        return min(self.given.max_batched_tokens or DEFAULT_UBATCH, longest_length(self.given))

    def caches(self, stage: ModelSpec) -> Iterator[LayerCache]:
        """The layers' caches; state is kept in fp32, latents as the build keeps them."""
        kv = self.given.kv_dtype
        for layer in stage.layers:
            for mixer in layer.mixers:
                if isinstance(mixer, Recurrent):
                    state = (mixer.state_elements + mixer.conv_elements) * FP32_BYTES
                    yield LayerCache("state", state_bytes=state)
                elif isinstance(mixer, LatentAttention) and not self.build.latent:
                    yield per_head_latent(mixer, kv_dtype=kv)
                else:
                    cache = mixer_cache(mixer, stage, kv_dtype=kv)
                    if cache is not None:
                        yield cache

    def cells(self, cache: LayerCache, length: int, *, full: bool) -> int:
        """Cells that one sequence of up to ``length`` tokens has in this layer."""
        if cache.kind == "state":
            return 1
        if cache.kind == "cross" or cache.window is None or full or not self.honours_windows:
            return padded(cache.window if cache.kind == "cross" and cache.window else length)
        return min(padded(length), padded(cache.window + self.ubatch))

    def sequence_bytes(self, stage: ModelSpec, length: int, *, full: bool | None = None) -> int:
        """Cache bytes of one sequence; ``full`` overrides the full-window switch."""
        switch = self.given.swa_full or not self.build.windows if full is None else full
        return sum(
            self.cells(cache, length, full=switch) * cache.token_bytes + cache.state_bytes
            for cache in self.caches(stage)
        )

    def compute_bytes(self, stage: ModelSpec) -> int:
        """The compute buffer with flash attention: logits and hidden states of a physical batch in fp32.

        Llama-3 8B: 512 x (128256 + 4096) x 4 B = 258.5 MiB, as it prints.
        """
        return self.ubatch * (self.given.spec.vocab_size + stage.hidden_size) * FP32_BYTES

    def device_weights(self, stage: ModelSpec) -> tuple[int, int]:
        """(bytes on the device, bytes on the host): the token table is read on the host.

        A tied table is kept twice, for the head runs on the device.
        """
        table = embedding_bytes(stage.embedding, stage) if stage.embedding else 0
        return weights_bytes(stage) - (0 if stage.tied else table), table

    def ledger(self) -> Ledger:
        """Rows of the fullest device; the cache row is what is allocated at start."""
        if self.given.spec.free_form is not None:
            raise UnsupportedError(
                "llama.cpp's rules need the model's layers",
                value=self.given.spec.name,
                next="use --engine none",
            )
        ledgers = [self._stage_ledger(stage) for stage in self.given.stages]
        return max(ledgers, key=lambda ledger: ledger.total_bytes)

    def _stage_ledger(self, stage: ModelSpec) -> Ledger:
        given = self.given
        total = given.reported_bytes or given.capacity_bytes
        low, context, high = CONTEXT_BYTES
        usable = None if total is None else int((total - context) * (given.memory_utilization or 1.0))
        length, asked = longest_length(given), max(1, given.context)
        # Only a length that was asked for is allocated: the model's own limit would be no one's choice.
        slot = given.max_model_len or padded(asked)
        slots = given.max_sequences or given.batch
        weights, host = self.device_weights(stage)
        each = self.sequence_bytes(stage, slot)
        compute = self.compute_bytes(stage)
        rows = (
            LedgerRow("weights", weights),
            LedgerRow("activations", compute, "assumed", compute, 2 * compute, "the compute buffer"),
            LedgerRow("kv_cache", slots * each),
        )
        room = given.kv_pool_bytes
        if room is None and usable is not None:
            room = usable - weights - compute
        longest = None if room is None else self._longest(stage, room, length)
        report = self._report(stage, slot, asked, each)
        reasons: tuple[str, ...] = ()
        if room is not None and usable is not None and slots * each > room:
            what = "weights" if room <= 0 else "the KV cache"
            reasons = (
                f"failed to allocate {what}: {slots} x {slot} cells need {slots * each / GIB:.2f} GiB and "
                f"{max(0, room) / GIB:.2f} GiB are left; lower the context or keep layers on the host",
            )
        return Ledger(
            rows=rows,
            capacity_bytes=usable,
            kv_capacity_bytes=None if room is None else max(0, room),
            kv_capacity_tokens=longest,
            max_sequences=None if room is None or not each else max(0, room) // each,
            max_concurrency=None if room is None or not each else max(0, room) / each,
            notes=tuple(self._notes(stage, slots, slot, host)),
            reasons=reasons,
            outside=(
                LedgerRow("context", context, "assumed", low, high, "the CUDA context"),
                LedgerRow("host", host, source="the token table, in host memory"),
            ),
            cache=report,
            longest_context=longest,
            minimum_utilization=None,
        )

    def _longest(self, stage: ModelSpec, room: int, limit: int) -> int:
        """The longest single sequence whose cells fit in ``room``."""
        low, high = 0, max(limit, self.given.spec.max_context or 0)
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.sequence_bytes(stage, middle) <= room
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _report(self, stage: ModelSpec, slot: int, asked: int, each: int) -> CacheReport:
        kv = self.given.kv_dtype
        counts: dict[LayerCache, int] = {}
        for cache in self.caches(stage):
            counts[cache] = counts.get(cache, 0) + 1
        switch = self.given.swa_full or not self.build.windows
        groups = tuple(
            CacheGroup(
                kind=cache.kind,
                layers=count,
                padding=0,
                block_tokens=1,
                page_bytes=cache.token_bytes or cache.state_bytes,
                blocks=self.cells(cache, slot, full=switch),
                tokens_kept=cache.window if self.honours_windows else None,
            )
            for cache, count in counts.items()
        )
        both: tuple[tuple[str, int], ...] = ()
        if self.honours_windows and any(cache.window for cache in counts):
            both = (
                ("swa_full off", self.sequence_bytes(stage, slot, full=False)),
                ("swa_full on", self.sequence_bytes(stage, slot, full=True)),
            )
        latent = any(isinstance(m, LatentAttention) for layer in stage.layers for m in layer.mixers)
        words = f"{self.build.name}: cells of one token, {slot} a sequence, allocated at start"
        if latent:
            words += ", one latent a token" if self.build.latent else ", keys and values of every head"
        return CacheReport(
            layout=words,
            dtype=kv,
            fixed_bytes=fixed_bytes(stage, kv_dtype=kv),
            growth_bytes_per_token=growth_bytes_per_token(stage, kv_dtype=kv),
            logical_bytes=logical_bytes(stage, context=asked, kv_dtype=kv),
            allocated_bytes=each,
            minimum_bytes=each,
            groups=groups,
            alternatives=both,
        )

    def _notes(self, stage: ModelSpec, slots: int, slot: int, host: int) -> Iterator[str]:
        yield f"the cache of {slots} sequences of {slot} cells is allocated at start, used or not"
        if host:
            yield f"the token table ({host / MIB:.0f} MiB) stays in host memory"
        windows = {cache.window for cache in self.caches(stage) if cache.window and cache.kind != "cross"}
        if windows and not self.honours_windows:
            yield f"the window of {max(windows)} tokens is not used: this engine keeps every token"
        if any(isinstance(m, LatentAttention) for layer in stage.layers for m in layer.mixers):
            yield (
                "a GGUF converted before April 2025 (b5129) keeps keys and values per head, in any build"
                if self.build.latent
                else "latent attention is kept per head before b5129: many times the latent's size"
            )
        if self.given.layout.tp > 1:
            yield "llama.cpp deals layers to devices; an even split of every layer is shown"
