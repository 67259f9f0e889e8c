"""What a vLLM ledger says: why the engine does not start, in its own terms, and what to know besides."""

from __future__ import annotations

from rooflens.analysis.engines.vllm_settings import Settings, StageMemory
from rooflens.analysis.ledger import CacheReport, LedgerInput
from rooflens.units import GIB


def gib(value: float) -> str:
    """Bytes as the engine prints them: GiB with two decimals."""
    return f"{value / GIB:.2f} GiB"


def reasons(
    given: LedgerInput,
    settings: Settings,
    stage: StageMemory,
    report: CacheReport,
    *,
    pool: int | None,
    printed_tokens: int | None,
    longest: int | None,
) -> tuple[str, ...]:
    """The first thing that stops the engine, or nothing; nothing either where the capacity is not known."""
    total, requested = settings.total_bytes, settings.requested_bytes
    if pool is None:
        return ()
    if given.kv_pool_bytes is None and total is not None and requested is not None:
        early = _before_profiling(settings, stage, total=total, requested=requested)
        if early is not None:
            return (early,)
    if report.minimum_bytes == 0:
        return ()
    if pool <= 0:
        return (
            "No available memory for the cache blocks: "
            + ", ".join(f"{row.name} {gib(row.bytes)}" for row in stage.budgeted(settings.rules))
            + f" exceed {settings.utilization:g} of {gib(total or 0)} by {gib(-pool)}",
        )
    length = settings.max_model_len
    if not settings.rules.v1:
        if printed_tokens is not None and printed_tokens >= length:
            return ()
        return (
            f"max seq len ({length}) is larger than the maximum number of tokens that can be stored in "
            f"KV cache ({printed_tokens})",
        )
    if report.minimum_bytes <= pool:
        return ()
    return (
        f"max seq len ({length}) needs {gib(report.minimum_bytes)} of KV cache, larger than the available "
        f"{gib(pool)}; the estimated maximum length is {longest}",
    )


def _before_profiling(settings: Settings, stage: StageMemory, *, total: int, requested: int) -> str | None:
    if stage.weights.bytes > total - settings.context.low_bytes:
        return (
            f"CUDA out of memory while loading: weights of {gib(stage.weights.bytes)} exceed the device's "
            f"{gib(total)}"
        )
    free = total - settings.context.low_bytes
    if settings.rules.v1 and requested > free:
        return (
            f"free memory on start-up, at most {gib(free)}, is less than the desired utilization "
            f"({settings.utilization:g}, {gib(requested)})"
        )
    return None


def notes(
    given: LedgerInput,
    settings: Settings,
    stage: StageMemory,
    report: CacheReport,
    *,
    printed_tokens: int | None,
) -> tuple[str, ...]:
    """What the figures rest on, and what moves them."""
    rules = settings.rules
    said = [
        f"the cache pool is filled by design: one request of max_model_len {settings.max_model_len} needs "
        f"{gib(report.minimum_bytes)} of it"
    ]
    if given.engine_version is None:
        later = "; from 0.20 on CUDA graphs are paid from the pool and the default utilization is 0.92"
        said.append(
            f"memory rules of vLLM {rules.version}{'' if rules.counts_graphs else later}: name the engine "
            "version for another"
        )
    if given.reported_bytes is None and given.capacity_bytes is not None:
        said.append("what the driver reports is not known: utilization is taken of the memory as sold")
    if stage.graphs is not None and not rules.counts_graphs:
        said.append(
            f"CUDA graphs take about {gib(stage.graphs.bytes)} more after the pool is taken, outside the "
            "utilization"
        )
    if settings.kv_dtype != given.kv_dtype:
        said.append(f"the cache is {settings.kv_dtype}, as the checkpoint's own scheme says")
    if rules.counts_reserved:
        said.append(
            "before 0.6.4 the engine counts what torch has reserved, fragments included: activations can be "
            "several times the figure"
        )
    if len(report.groups) > 1:
        said.append(
            f"at {given.context} tokens a sequence needs {gib(report.logical_bytes)} and is allocated "
            f"{gib(report.allocated_bytes)}: whole blocks in {len(report.groups)} groups"
        )
        said.append(
            f"need(L) = {report.fixed_bytes} + {report.growth_bytes_per_token:g} x L bytes by the model; the "
            f"printed {printed_tokens} tokens depend on max_model_len and are no capacity"
        )
    said.extend(_about_images(given, settings))
    return tuple(said)


def _about_images(given: LedgerInput, settings: Settings) -> list[str]:
    kinds = {component.kind for component in given.spec.components}
    mixers = {mixer.kind.value for layer in given.spec.layers for mixer in layer.mixers}
    if "vision" not in kinds and "cross" not in mixers:
        return []
    if not settings.rules.v1:
        return [
            f"image tokens x max_num_seqs ({settings.sequences}) drive the activations of such a model: "
            "they can be tens of GiB; lower max_num_seqs"
        ]
    return [
        f"images are profiled up to the token budget ({settings.batched_tokens}): the vision tower's own "
        "activations are not in the figure"
    ]
