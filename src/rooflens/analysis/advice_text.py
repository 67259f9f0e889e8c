"""What advice says in JSON (English): what a technique acts on, and why it gains what it gains here."""

from __future__ import annotations

ACTS_ON: dict[str, str] = {
    "weight_quantisation": "bytes of weights: the slope moves right",
    "kv_quantisation": "bytes of KV cache per token: long contexts, more sequences fit",
    "continuous_batching": "intensity: one weight read serves more requests",
    "speculative_decoding": "several tokens per weight read, paid with idle compute",
    "ngram_decoding": "several tokens per weight read, guessed from the text so far",
    "chunked_prefill": "the activation peak, and the stall that a long prompt causes to decodes",
    "prefix_caching": "FLOPs of prompts: what was computed before is not computed again",
    "cuda_graphs": "launch overhead: kernels of a step are replayed instead of started one by one",
    "fused_attention": "bytes: attention scores stay on chip",
    "expert_parallel": "where experts are read: whole ones on each device instead of slices of all",
    "host_experts": "capacity: routed experts stay in the host's memory, visited ones come over its link",
    "offload": "capacity: weights that do not fit are read over the host link",
    "nvme_offload": "capacity: weights that do not fit are read from a drive",
    "faster_device": "the roof itself: bandwidth for decode, FLOPs for prefill",
    "other_layout": "the same devices cut another way: all-reduces against batches of their own",
    "tensor_parallel": "bytes and FLOPs per device, paid with all-reduces",
    "phase_split": "each phase on devices and settings of its own",
}

WHY: dict[str, str] = {
    "weights": "Weights shrink from {before} to {after} a device; little is left once arithmetic limits "
    "(before: batch {ridge}).",
    "weights.none": "No gain here: the weights are in a small format already, or none of the engine's suits.",
    "cache": "Cache reads are {share} of what a decode step moves; twice the tokens fit. The gain "
    "grows with context and batch.",
    "cache.little": "Cache reads are only {share} of what a decode step moves: it saves memory, hardly time, "
    "until contexts or batches grow.",
    "cache.small": "No gain here: the cache is in {dtype} already.",
    "batch": "{batch} sequences share each weight read; a token then takes {tpot}. It stops helping "
    "when cache reads or arithmetic (batch {ridge}) dominate.",
    "batch.none": "No gain here: more sequences do not fit, or a token would take over twice as long (at "
    "most {most}).",
    "speculation": "A verifying step takes {verify} (a plain one {plain}) and its drafts {draft}; it yields "
    "{tokens} tokens if {acceptance} of the guesses are right (assumed). It stops paying at a batch of "
    "{until}.",
    "look_up": "A verifying step takes {verify} (a plain one {plain}), looking up next to nothing ({draft}); "
    "it yields {tokens} tokens if {acceptance} of the guesses are right (assumed: text that repeats its "
    "prompt). It stops paying at a batch of {until}.",
    "speculation.none": "No gain here: at batch {batch} verifying guesses costs as much time as they save.",
    "chunks": "The longest stall of decodes falls from {before} to {after}; the prompt itself takes no "
    "less time, and more once chunks are so small that weights are read too often.",
    "chunks.short": "It caps the activation peak; decodes wait no less, since a prompt is shorter than a "
    "chunk.",
    "chunks.none": "No gain here: prompts already run in chunks this small.",
    "prefix": "If {share} of every prompt is cached (assumed), only the rest is computed; nothing "
    "without shared prefixes.",
    "graphs": "No gain here: the estimate assumes graphs. Without them a token would take {loss} times "
    "as long.",
    "fused": "No gain here: the estimate assumes it. Without it the first token would take {loss} "
    "times as long.",
    "experts": "Whole experts on each device make larger matrices; uneven routing and small batches take"
    " it back.",
    "experts.none": "No gain here: at this batch each device reads as many bytes of experts either way.",
    "offload": "It makes the model run: {bytes} come over the host link in every step, so a token takes "
    "{tpot}.",
    "host_experts": "It makes the model run: {bytes} of experts stay in the host's memory, and those that a "
    "step visits come over the link, so a token takes {tpot}. Larger batches visit more of them.",
    "host_experts.none": "No gain here: the experts fit; in the host's memory ({bytes} a device) a token "
    "would take {loss} times as long.",
    "nvme_offload": "It makes the model run: {bytes} come from a drive in every step (7 GB/s a machine, "
    "assumed), so a token takes {tpot}; the host's memory is faster while it has room.",
    "nvme_offload.none": "No gain here: everything fits, and a drive is slower than the host's memory.",
    "offload.none": "No gain here: everything fits, and the host link is slower than the device's memory.",
    "device": "{device} has {bandwidth} times the bandwidth; once arithmetic limits, its peak counts.",
    "device.none": "The catalogue has no device of this vendor with more bandwidth than {device}.",
    "layout": "Each device reads half; with all-reduces {per_device} of the throughput per device is left. "
    "From tp {until} on doubling again gains a token less than 10 %.",
    "other_layout": "The same devices as {now} now. It stops helping when latency counts more than "
    "throughput, or the other way round.",
    "other_layout.none": "No gain here: no other layout of these devices is better than {now}.",
    "split": "Prompts no longer run between decodes, which now costs {share} of a token's time; moving"
    " a prompt's cache takes {transfer}, and it needs a second pool.",
    "split.none": "No gain here: with one sequence no prompt delays another's tokens.",
}
