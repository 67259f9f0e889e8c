"""What is asked of a model on a device, checked once; the plan, the sweep and the page all start here."""

from __future__ import annotations

from dataclasses import dataclass

from rooflens.analysis.communication import DEFAULT_NETWORK, Network, network_of
from rooflens.analysis.numeric import ceil_div
from rooflens.analysis.parallelism import Layout, resolve_layout
from rooflens.analysis.roofline import Roof
from rooflens.analysis.step import Op
from rooflens.errors import InputError, UnsupportedError
from rooflens.hardware.device import Device
from rooflens.models.accounting import cache_dtype
from rooflens.models.spec import ModelSpec

# Element types that a matrix multiply falls back to when the checkpoint's own type has no peak here:
# engines then run weight-only kernels in the activations' type, or fp16 where bf16 is missing.
LLAMA_CPP_CHUNK = 512  # n_ubatch, the default
GGUF_PREFIXES = ("q2_", "q3_", "q4_", "q5_", "q6_", "q8_", "iq", "tq")
_SAME_WIDTH = {"bf16": "fp16", "fp16": "bf16"}


DEFAULT_PROMPT = 512
DEFAULT_OUTPUT = 128


@dataclass(frozen=True)
class Workload:
    """Requests and how they are run. ``context`` is what each sequence holds when a decode step is priced."""

    batch: int
    prompt: int
    output: int
    context: int
    layout: Layout
    engine: str
    kv_dtype: str
    kv_dtype_auto: bool = False
    max_model_len: int | None = None
    max_batched_tokens: int | None = None
    max_sequences: int | None = None
    memory_utilization: float | None = None
    engine_version: str | None = None
    swa_full: bool = False
    network: Network = DEFAULT_NETWORK

    @property
    def replica_batch(self) -> int:
        """Sequences of the fullest data-parallel replica."""
        return int(ceil_div(self.batch, self.layout.dp))


def _whole(name: str, value: object, *, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} is not usable", value=value, allowed=f"a whole number from {least}")


def make_workload(
    spec: ModelSpec,
    *,
    batch: int = 1,
    prompt: int = DEFAULT_PROMPT,
    output: int = DEFAULT_OUTPUT,
    context: int | None = None,
    count: int = 1,
    tp: int | None = None,
    pp: int = 1,
    ep: int = 1,
    dp: int = 1,
    engine: str = "none",
    kv_dtype: str | None = None,
    max_model_len: int | None = None,
    max_batched_tokens: int | None = None,
    max_sequences: int | None = None,
    memory_utilization: float | None = None,
    engine_version: str | None = None,
    swa_full: bool = False,
    devices_per_node: int | None = None,
    network: float | None = None,
) -> Workload:
    """Check every number and fill the defaults: context = prompt + output, KV in the model's dtype.

    ``network`` is what one device sends to other nodes in bytes/s. Raises InputError naming the field, the
    value and what is allowed.
    """
    for name, value in (("batch", batch), ("prompt", prompt), ("output", output)):
        _whole(name, value)
    if context is not None:
        _whole("context", context, least=0)
    optional = {
        "max_model_len": max_model_len,
        "max_batched_tokens": max_batched_tokens,
        "max_sequences": max_sequences,
    }
    for name, limit in optional.items():
        if limit is not None:
            _whole(name, limit)
    if memory_utilization is not None and not 0 < memory_utilization <= 1:
        raise InputError(
            "memory_utilization is not usable", value=memory_utilization, allowed="above 0, at most 1"
        )
    longest = prompt + output if context is None else context
    if max_model_len is not None and longest > max_model_len:
        raise InputError(
            f"a sequence of {longest} tokens is longer than max_model_len {max_model_len}",
            value=longest,
            next="shorten the prompt, output or context, or raise --max-model-len",
        )
    return Workload(
        batch=batch,
        prompt=prompt,
        output=output,
        context=longest,
        layout=resolve_layout(count=count, tp=tp, pp=pp, ep=ep, dp=dp),
        engine=engine,
        kv_dtype=cache_dtype(spec, kv_dtype),
        kv_dtype_auto=kv_dtype in (None, "auto"),
        max_model_len=max_model_len,
        max_batched_tokens=max_batched_tokens,
        max_sequences=max_sequences,
        memory_utilization=memory_utilization,
        engine_version=engine_version,
        swa_full=swa_full,
        network=network_of(devices_per_node, network),
    )


@dataclass(frozen=True)
class Rates:
    """The device's rates for this model: the roof, the type most FLOPs run in, what was substituted."""

    roof: Roof
    compute_dtype: str
    notes: tuple[str, ...]


def device_rates(
    spec: ModelSpec, device: Device, ops: tuple[Op, ...], *, strict: bool, engine: str = "none"
) -> Rates:
    """Peaks for every compute type of ``ops``, and the bandwidths.

    ``strict``: the formats were asked for, so a missing peak is refused (UnsupportedError). Otherwise
    the checkpoint's own type may run as engines run it then: quantised weights in the activations'
    type, bf16 as fp16 or the reverse; said in ``notes``. llama.cpp multiplies GGUF blocks as int8 and may
    add up in fp16, so with GGUF weights or that ``engine`` the faster of these peaks is the one that
    nothing can beat.
    """
    flops: dict[str, float] = {}
    for op in ops:
        flops[op.compute_dtype] = flops.get(op.compute_dtype, 0.0) + float(op.total.flops)
    peaks: dict[str, float] = {}
    notes: list[str] = []
    used: dict[str, str] = {}
    for dtype in flops:
        used[dtype] = _available(spec, device, dtype, strict=strict)
        faster = _block_kernels(spec, device, used[dtype], engine)
        if faster != used[dtype]:
            notes.append(f"GGUF kernels can run {used[dtype]} matrix multiplies in {faster} on {device.id}")
            used[dtype] = faster
            peaks[dtype] = device.peak_flops_per_s(faster)
            continue
        peaks[dtype] = device.peak_flops_per_s(used[dtype])
        if used[dtype] != dtype:
            notes.append(f"{device.id} has no {dtype} peak: {dtype} matrix multiplies run in {used[dtype]}")
    busiest = max(flops, key=lambda dtype: flops[dtype])
    link = device.link or device.host_link
    per_direction = link.bytes_per_s_per_direction if link else None
    return Rates(Roof(peaks, device.bandwidth(), per_direction), used[busiest], tuple(notes))


def _block_kernels(spec: ModelSpec, device: Device, dtype: str, engine: str) -> str:
    """The fastest type that llama.cpp's kernels may use in place of ``dtype``."""
    blocks = (spec.quantization or "").startswith(GGUF_PREFIXES)
    if dtype not in ("bf16", "fp16") or not (blocks or engine.lower() in ("llama.cpp", "ollama")):
        return dtype
    known = device.peaks_flops_per_s
    candidates = [dtype, *(["int8"] if blocks else []), "fp16_acc16"]
    return max((name for name in candidates if name in known), key=lambda name: known[name], default=dtype)


def _available(spec: ModelSpec, device: Device, dtype: str, *, strict: bool) -> str:
    if strict:
        return dtype
    candidates = [dtype, spec.dtype, _SAME_WIDTH.get(spec.dtype, spec.dtype)]
    for candidate in candidates:
        try:
            device.peak(candidate)
        except UnsupportedError:
            continue
        return candidate
    return dtype  # the caller's look-up then raises, naming the checkpoint's own type


def prefill_chunk_tokens(workload: Workload) -> int | None:
    """Tokens of a prefill that run together: the engine's step budget, llama.cpp's micro-batch, or all."""
    if workload.engine in ("llama.cpp", "ollama"):
        return LLAMA_CPP_CHUNK
    return workload.max_batched_tokens
