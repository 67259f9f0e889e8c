"""Attention: FLOP/s of a prompt, and cache bytes per second of one new token over a long context."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rooflens.analysis.costs import attention_cost
from rooflens.measure.probes.operands import normal
from rooflens.measure.probes.run import AttentionShape, Run
from rooflens.measure.records import Measurement
from rooflens.measure.timer import TimingError, Work

CONTEXT_TOKENS = 4096
FEWEST_CACHES = 3
_TILE_ROWS = 128
_TOLERANCE = 3e-2

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def probe_attention(run: Run) -> Iterator[Measurement]:
    """Prefill of the effort's prompt (causal) and decode of one token over 4,096, in the fastest 16-bit type.

    Queries are [heads, tokens, head_dim], keys and values [kv_heads, tokens, head_dim], without a batch.
    """
    dtype = _dtype(run)
    if run.wants("attention.prefill"):
        yield from _prefill(run, dtype)
    if run.wants("attention.decode"):
        yield from _decode(run, dtype)


def _dtype(run: Run) -> torch.dtype:
    """bf16, but for devices that only emulate it."""
    from rooflens.runtime.dtypes import bf16_is_fast

    return torch.bfloat16 if bf16_is_fast(run.target.device) else torch.float32


def _prefill(run: Run, dtype: torch.dtype) -> Iterator[Measurement]:
    shape, device = run.shapes.attention, run.target.device
    group, tokens = shape.heads // shape.kv_heads, run.effort.prompt_tokens
    q = normal(shape.heads, tokens, shape.head_dim, dtype=dtype, device=device)
    # Keys and values repeated beforehand: torch's grouped mode repeats them in every call, slowly.
    k = normal(shape.heads, tokens, shape.head_dim, dtype=dtype, device=device)
    v = k.roll(1, dims=0)
    ways: dict[str, Attend] = {"torch SDPA": _fused, "tiles of matmul and softmax": _tiled}
    yield from _fastest(
        run,
        f"attention.prefill.{_name(dtype)}",
        {name: _single(attend, q, k, v) for name, attend in ways.items()},
        {name: attend(q, k, v) for name, attend in ways.items()},
        unit_is_flops=True,
        amount=prefill_flops(shape, tokens),
        parameters=_parameters(shape, dtype, tokens=tokens, group=group),
    )


def _decode(run: Run, dtype: torch.dtype) -> Iterator[Measurement]:
    """One token: the query heads that share a KV head become the rows of one small matrix."""
    shape, device = run.shapes.attention, run.target.device
    group = shape.heads // shape.kv_heads
    cache_bytes = decode_bytes(shape, dtype.itemsize)
    # Several layers' caches take turns, so that none is still on chip when it is read again.
    copies = max(FEWEST_CACHES, -(-run.target.rotation_bytes // round(cache_bytes)))
    q = normal(shape.kv_heads, group, shape.head_dim, dtype=dtype, device=device)
    base = normal(2, shape.kv_heads, CONTEXT_TOKENS, shape.head_dim, dtype=dtype, device=device)
    caches = [base.roll(index, dims=1) for index in range(copies)]
    ways: dict[str, Attend] = {"torch SDPA": _fused_all, "matmul and softmax": _plain}
    yield from _fastest(
        run,
        f"attention.decode.{_name(dtype)}",
        {name: _rotating(attend, q, caches) for name, attend in ways.items()},
        {name: attend(q, base[0], base[1]) for name, attend in ways.items()},
        unit_is_flops=False,
        amount=cache_bytes,
        parameters=_parameters(shape, dtype, tokens=CONTEXT_TOKENS, group=group, copies=copies),
    )


def prefill_flops(shape: AttentionShape, tokens: int) -> float:
    """FLOPs of the causal prompt, masked pairs not counted."""
    cost = attention_cost(
        heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim, v_head_dim=shape.head_dim,
        sequences=1, new_tokens=tokens, context=0, kv_bytes_per_token=0, element_bytes=0,
    )  # fmt: skip
    return float(cost.flops)


def decode_bytes(shape: AttentionShape, element_bytes: int) -> float:
    """Keys and values that one new token reads."""
    cost = attention_cost(
        heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim, v_head_dim=shape.head_dim,
        sequences=1, new_tokens=1, context=CONTEXT_TOKENS,
        kv_bytes_per_token=2 * shape.kv_heads * shape.head_dim * element_bytes, element_bytes=element_bytes,
    )  # fmt: skip
    return float(cost.kv_read_bytes)


def _fastest(
    run: Run,
    name: str,
    works: dict[str, Work],
    outputs: dict[str, Tensor],
    *,
    unit_is_flops: bool,
    amount: float,
    parameters: dict[str, int | float | str],
) -> Iterator[Measurement]:
    """The fastest way, once all agree: a wrong attention is not a fast one."""
    first, *rest = outputs.values()
    for other in rest:
        error = (first.float() - other.float()).norm() / first.float().norm()
        if not error <= _TOLERANCE:
            raise TimingError(f"{name}: the ways to compute it disagree", value=f"relative error {error:.2g}")
    batches = {way: run.target.clock.batch(work) for way, work in works.items()}
    way, seconds = run.fastest(batches)
    yield run.figure(
        name,
        batches[way],
        unit="flops_per_s" if unit_is_flops else "bytes_per_s",
        amount=amount,
        method=way,
        parameters=parameters,
        tried={other: amount / value for other, value in seconds.items()},
    )


def _fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]


def _fused_all(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def _tiled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention, a block of queries at a time over the keys that it may see."""
    out = torch.empty_like(q)
    tokens = q.shape[1]
    hidden = torch.full((_TILE_ROWS, _TILE_ROWS), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
    for start in range(0, tokens, _TILE_ROWS):
        end = start + _TILE_ROWS
        scores = torch.matmul(q[:, start:end], k[:, :end].transpose(-1, -2)) * q.shape[-1] ** -0.5
        scores[:, :, start:] += hidden
        out[:, start:end] = torch.matmul(torch.softmax(scores, dim=-1), v[:, :end])
    return out


def _single(attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Work:
    return lambda _: attend(q, k, v)


def _rotating(attend: Attend, q: Tensor, caches: list[Tensor]) -> Work:
    return lambda call: attend(q, *caches[call % len(caches)])


def _parameters(shape: AttentionShape, dtype: torch.dtype, **more: int) -> dict[str, int | float | str]:
    return {
        "dtype": _name(dtype),
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        **more,
    }


def _name(dtype: torch.dtype) -> str:
    return "bf16" if dtype == torch.bfloat16 else "fp32"
