"""The roofline arithmetic of LLM inference, step by step: each line is computed twice and compared.

    python examples/arithmetic.py

Left: two divisions on a napkin. Right: what Rooflens answers. Read it from top to bottom; every number
of a spec sheet or a blog post about inference speed comes out of these few lines.
"""

from __future__ import annotations

import math

import rooflens
from rooflens.units import (
    KIB,
    format_bandwidth,
    format_bytes,
    format_flops_per_s,
    format_rate,
    format_seconds,
)


def show(what: str, napkin: float, answer: float, text: str, *, within: float = 0.03) -> None:
    """Print one line; stop if napkin and answer differ by more than ``within``."""
    if not math.isclose(napkin, answer, rel_tol=within):
        raise SystemExit(f"{what}: napkin {napkin}, rooflens {answer}")
    print(f"  {what:58} {text}")


def main() -> None:
    """Walk through sections 1 to 3: the roof, a 7B model on an A100, an 8B model on an H100."""
    print("1. Two numbers of a device: peak P and bandwidth B. Their quotient is the ridge point.")
    device = rooflens.find_device("a100-sxm-80")
    peak, bandwidth = 312e12, 2039e9
    ridge = peak / bandwidth
    show(
        f"{format_flops_per_s(peak)} / {format_bandwidth(bandwidth)}",
        ridge, device.ridge_flops_per_byte("bf16"), f"ridge {ridge:.0f} FLOP/byte",
    )  # fmt: skip
    for intensity in (1, 32, 1000):
        (point,) = rooflens.roofline("a100-sxm-80", intensities=[intensity]).points
        napkin = min(peak, intensity * bandwidth)
        text = f"{format_flops_per_s(napkin)}, {napkin / peak:.1%} of peak, {point.regime}-bound"
        show(f"min(P, {intensity} FLOP/byte x B)", napkin, point.attainable_flops_per_s, text)

    print("\n2. Llama-2-7B in fp16: what the memory goes to.")
    model = "meta-llama/Llama-2-7b-hf"
    facts = rooflens.inspect(model)
    weights = 2 * 6_738_415_616
    show("2 B x 6,738,415,616 parameters", weights, facts.weights_bytes, format_bytes(weights))
    rate = 2 * 32 * 4096 * 2
    show(
        "KV per token: K and V x 32 layers x 4096 x 2 B",
        rate, facts.kv_bytes_per_token, format_bytes(rate, binary=True),
    )  # fmt: skip
    plan = rooflens.plan(model, "a100-sxm-80", batch=32, prompt=2048, context=2048)
    cache = 32 * 2048 * rate
    show("32 sequences x 2048 tokens", cache, plan.ledger.row("kv_cache"), format_bytes(cache, binary=True))
    show(
        "activations: 65,536 tokens x 11008 x 2 B",
        65_536 * 11_008 * 2, plan.ledger.row("activations"), format_bytes(65_536 * 11_008 * 2),
    )  # fmt: skip
    fits = (80e9 - weights - 1.5e9) // (2048 * rate)
    alone = rooflens.plan(model, "a100-sxm-80", prompt=1, context=2048)
    show(
        "(80 GB - weights - 1.5 GB) / 1 GiB per sequence",
        fits, float(alone.ledger.max_sequences or 0), f"{fits:.0f} sequences",
    )  # fmt: skip

    print("\n3. One decode step moves all weights, whatever the batch.")
    step = rooflens.plan(model, "a100-sxm-80", context=0).decode
    show(
        "weights / B (the token table is a look-up: 2 % less)",
        weights / bandwidth, step.times.weights_s, format_seconds(step.times.weights_s),
    )  # fmt: skip
    show("so at most", bandwidth / weights, step.tokens_per_s, f"{format_rate(step.tokens_per_s)} tokens/s")
    show(
        "arithmetic: 2 FLOP x weights / P",
        2 * 6.738e9 / peak, step.times.compute_s, format_seconds(step.times.compute_s),
    )  # fmt: skip
    show("batch that reaches the ridge", ridge, plan.ridge_batch or 0.0, f"{plan.ridge_batch:.0f}")
    long = rooflens.plan(model, "a100-sxm-80", batch=32, context=2000).decode
    napkin = (weights + 32 * 2000 * rate) / bandwidth
    show("batch 32 at 2000 tokens: weights + KV", napkin, long.bound_s, format_seconds(long.bound_s))

    print("\n4. Fewer bytes per weight move the slope: the same step in int8 and int4.")
    for name, size in (("int8", 1.0), ("int4", 0.5)):
        quantised = rooflens.plan(model, "a100-sxm-80", weights=name, context=0)
        napkin = size * 6_738_415_616 / bandwidth
        text = f"{format_seconds(quantised.decode.bound_s)}, ridge at batch {quantised.ridge_batch:.0f}"
        show(f"{name}: {size} B per weight / B", napkin, quantised.decode.bound_s, text)

    print("\n5. Any 8e9-parameter model with 128 KiB of KV per token, on an H100.")
    size_only = rooflens.dense(params=8e9, kv_bytes_per_token=128 * KIB)
    prefill = rooflens.plan(size_only, "h100-sxm", prompt=2000).prefill
    napkin = 2000 * 2 * 8e9 / 989.4e12
    show(
        "prefill of 2000 tokens: 32 TFLOP / P",
        napkin, prefill.bound_s, f"{format_seconds(prefill.bound_s)}, {prefill.limited_by}-bound",
    )  # fmt: skip
    many = rooflens.plan(size_only, "h100-sxm", batch=64, context=4096).decode
    napkin = (16e9 + 64 * 4096 * 128 * KIB) / 3.35e12
    text = f"{format_seconds(many.bound_s)}, {format_rate(many.tokens_per_s)} tokens/s"
    show("64 sequences of 4096 tokens: (16 + 34) GB / B", napkin, many.bound_s, text)


if __name__ == "__main__":
    main()
