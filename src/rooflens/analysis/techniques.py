"""What-if: techniques as changes of a scenario, composable, each priced by the same formulas as the plan.

A scenario is a model on devices under a workload, with the techniques that a plan has no option for. A
technique takes one and returns another; ``evaluate`` prices either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rooflens.analysis.calibration import calibration
from rooflens.analysis.estimate import setting_for
from rooflens.analysis.likely import likely_step_s
from rooflens.analysis.parallelism import Layout, rank_specs
from rooflens.analysis.plan import Plan, plan_spec
from rooflens.analysis.step import Phase, Step, decode_step, prefill_step, step_ops
from rooflens.analysis.workload import Workload
from rooflens.errors import InputError
from rooflens.hardware.device import Device
from rooflens.models.accounting import kv_sequence_bytes, weights_bytes
from rooflens.models.formats.apply import apply_format
from rooflens.models.formats.base import dtype_bytes
from rooflens.models.spec import Attention, MixtureOfExperts, ModelSpec

DRIVE_BYTES_PER_S = 7e9
"""What one NVMe drive on four PCIe 4.0 lanes reads in a row, as its data sheets say; assumed."""
EAGER_S = 7.5e-6
"""The host's time to start one kernel from Python: 5 to 10 microseconds."""


@dataclass(frozen=True)
class Draft:
    """Speculative decoding: ``tokens`` guesses a step, each right with probability ``acceptance``.

    ``acceptance`` is that of a guess whose forerunners were right. ``cost_share`` is the time of one guess
    over that of a plain decode step: about the drafting model's share of the bytes, 0 for n-gram look-up.
    ``offered``: share of the steps that have guesses; the others are plain ones.
    """

    tokens: int
    acceptance: float
    cost_share: float = 0.0
    offered: float = 1.0

    @property
    def expected_tokens(self) -> float:
        """Tokens of a step: those of a verifying one, 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a), or one.

        Source: Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding",
        2023, equation 1.
        """
        if self.acceptance >= 1:
            verified = float(self.tokens + 1)
        else:
            verified = float((1 - self.acceptance ** (self.tokens + 1)) / (1 - self.acceptance))
        return 1 + self.offered * (verified - 1)

    def step_s(self, *, plain_s: float, verify_s: float) -> float:
        """Mean seconds of a step and its guesses, where a plain and a verifying one take so long."""
        guessed_s = verify_s + self.tokens * self.cost_share * plain_s
        return self.offered * guessed_s + (1 - self.offered) * plain_s

    def gain(self, *, plain_s: float, verify_s: float) -> float:
        """Times as many tokens per second as plain decoding: same source, theorem 3.8, with ``verify_s``."""
        return self.expected_tokens * plain_s / self.step_s(plain_s=plain_s, verify_s=verify_s)


@dataclass(frozen=True)
class Scenario:
    """What is priced. ``shared_prefix`` is the share of every prompt that is cached already;
    ``offloaded_bytes`` of weights (of all devices) are read over the host link in every step, or from the
    machine's drive where ``on_drive``; with ``host_experts`` the experts that a step visits are.
    ``split`` runs prefills on another pool of the same size.
    """

    spec: ModelSpec
    device: Device
    workload: Workload
    draft: Draft | None = None
    shared_prefix: float = 0.0
    eager_decode: bool = False
    unfused_attention: bool = False
    offloaded_bytes: float = 0.0
    on_drive: bool = False
    host_experts: bool = False
    split: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a scenario comes to. Likely seconds and rates in steady service; memory of the fullest device.

    ``tpot_s`` is the time between tokens of one sequence while other requests' prompts run in between,
    ``ttft_s`` that of the prompts of the batch; ``stall_s`` the longest wait of a decode for a prompt.
    """

    tpot_s: float
    ttft_s: float
    tokens_per_s: float
    stall_s: float
    memory_bytes: int
    fits: bool | None
    devices: int


Technique = Callable[[Scenario], Scenario]


def scenario_of(plan: Plan) -> Scenario:
    """The plan's own case."""
    return Scenario(plan.spec, plan.device, plan.workload)


def compose(*techniques: Technique) -> Technique:
    """One technique after the other."""

    def all_of(scenario: Scenario) -> Scenario:
        for technique in techniques:
            scenario = technique(scenario)
        return scenario

    return all_of


def evaluate(scenario: Scenario, planned: Plan) -> Outcome:
    """Price a scenario; ``planned`` is any plan of the model (its inspection is carried over).

    Raises as ``plan_spec`` where the scenario cannot be.
    """
    work = scenario.workload
    same = (scenario.spec, scenario.device, work) == (planned.spec, planned.device, planned.workload)
    plan = (
        planned
        if same
        else plan_spec(
            scenario.spec, scenario.device, work, inspection=planned.inspection, strict=False, remedies=False
        )
    )
    batch = work.replica_batch
    step_s = _decode_step_s(scenario, plan)
    tokens = 1.0 if scenario.draft is None else scenario.draft.expected_tokens
    prefill_s = float(plan.prefill.estimate.mid)
    if scenario.shared_prefix or scenario.unfused_attention:
        prefill_s = _prefill_s(scenario, plan)
    # Copies run while the kernels do.
    decode_copy_s, prefill_copy_s = _copies_s(scenario)
    step_s, prefill_s = max(step_s, decode_copy_s), max(prefill_s, prefill_copy_s)
    elsewhere = _elsewhere_bytes(scenario)
    one_s = prefill_s / batch  # the prompts of a batch, one by one
    stall_s = 0.0 if scenario.split or batch == 1 else _chunk_s(one_s, work)
    mixed_s = 0.0
    if not scenario.split and batch > 1:
        mixed_s = calibration().table["general"]["mix"] * one_s * (batch - 1) / work.output
    tpot_s = step_s / tokens + mixed_s
    return Outcome(
        tpot_s=tpot_s,
        ttft_s=prefill_s + _transfer_s(scenario),
        tokens_per_s=work.batch / tpot_s,
        stall_s=stall_s,
        memory_bytes=plan.ledger.total_bytes - round(elsewhere),
        fits=_fits(plan, elsewhere),
        devices=work.layout.devices * (2 if scenario.split else 1),
    )


def _fits(plan: Plan, elsewhere_bytes: float) -> bool | None:
    if not elsewhere_bytes or plan.ledger.capacity_bytes is None:
        return plan.ledger.fits
    return plan.ledger.total_bytes - elsewhere_bytes <= plan.ledger.capacity_bytes


def _elsewhere_bytes(scenario: Scenario) -> float:
    """Weights of the fullest device that are kept in the host's memory or on its drive."""
    away = scenario.offloaded_bytes / scenario.workload.layout.devices
    if scenario.host_experts:
        away += max(_expert_bytes(stage) for stage in rank_specs(scenario.spec, scenario.workload.layout))
    return away


def _expert_bytes(stage: ModelSpec) -> float:
    """Bytes of all routed experts: what a step of very many tokens is expected to read of them."""
    return _visited_bytes(stage, decode_step(sequences=1e9, context=0))


def _visited_bytes(stage: ModelSpec, step: Step) -> float:
    """Bytes of the experts that a step is expected to visit under uniform routing."""
    ops = step_ops(stage, step, kv_dtype=stage.dtype)
    return sum(
        float(op.expected_weight_bytes) * op.count for op in ops if op.expected_weight_bytes is not None
    )


def _copies_s(scenario: Scenario) -> tuple[float, float]:
    """Seconds that a device spends fetching weights in a decode step and in a prefill."""
    if not scenario.offloaded_bytes and not scenario.host_experts:
        return 0.0, 0.0
    work, host = scenario.workload, scenario.device.host_link
    rate = host.bytes_per_s_per_direction if host else None
    if scenario.on_drive:
        rate = DRIVE_BYTES_PER_S / min(work.layout.devices, work.network.devices_per_node)
    if rate is None:
        raise InputError(f"the host link of {scenario.device.id} is not known")
    decode = prefill = scenario.offloaded_bytes / work.layout.devices
    if scenario.host_experts:
        batch = work.replica_batch
        for stage in rank_specs(scenario.spec, work.layout):
            decode += _visited_bytes(stage, decode_step(sequences=batch, context=0))
            prefill += _visited_bytes(stage, prefill_step(sequences=batch, prompt=work.prompt))
    return decode / rate, prefill / rate


def _chunk_s(one_s: float, work: Workload) -> float:
    """The longest that a prompt keeps decodes waiting: all of it, or one chunk."""
    budget = work.max_batched_tokens
    return one_s if budget is None else one_s * min(1.0, budget / work.prompt)


def _transfer_s(scenario: Scenario) -> float:
    """The cache of one prompt over the link between the pools."""
    if not scenario.split:
        return 0.0
    link = scenario.device.link or scenario.device.host_link
    rate = link.bytes_per_s_per_direction if link else None
    if rate is None:
        raise InputError(f"the link of {scenario.device.id} is not known")
    work = scenario.workload
    held = kv_sequence_bytes(scenario.spec, context=work.prompt, kv_dtype=work.kv_dtype)
    return float(held) / work.layout.devices / rate


def step_likely_s(plan: Plan, step: Step, *, eager: bool, enqueue_s: float = 0.0) -> float:
    """Likely seconds of a step of the plan's model, devices and engine; the stages one after the other.

    Kernels that are started one by one take the host at least ``enqueue_s`` each.
    """
    work = plan.workload
    setting = setting_for(plan.spec, plan.device, work.engine)
    if enqueue_s > setting.engine.enqueue_s:
        setting = replace(setting, engine=replace(setting.engine, enqueue_s=enqueue_s))
    return float(
        likely_step_s(
            plan.spec,
            work.layout,
            plan.rates.roof,
            setting,
            step,
            kv_dtype=work.kv_dtype,
            eager=eager,
            network=work.network,
        )
    )


def _decode_step_s(scenario: Scenario, plan: Plan) -> float:
    """One decode step, or one verifying step with its drafts."""
    plain_s = float(plan.decode.estimate.mid)
    work, draft = scenario.workload, scenario.draft
    batch = work.replica_batch
    if draft is None and not scenario.eager_decode:
        return plain_s
    new = 1 if draft is None else draft.tokens + 1
    seconds = verifying_step_s(plan, batch, new, eager=scenario.eager_decode)
    return seconds if draft is None else draft.step_s(plain_s=plain_s, verify_s=seconds)


def verifying_step_s(plan: Plan, batch: int, new_tokens: int, *, eager: bool = False) -> float:
    """A decode step that runs ``new_tokens`` of each sequence at once (1: a plain one), logits for all."""
    step = Step(Phase.DECODE, batch, new_tokens, plan.workload.context, batch * new_tokens)
    return step_likely_s(plan, step, eager=eager, enqueue_s=EAGER_S if eager else 0.0)


def guess_cost_share(plan: Plan, drafting: Plan) -> float:
    """Likely time of a guess over that of a plain step of ``plan``'s model: a decode step of the draft's."""
    return float(drafting.decode.estimate.mid) / float(plan.decode.estimate.mid)


def _prefill_s(scenario: Scenario, plan: Plan) -> float:
    """The prompts less what is cached; with attention that writes its scores to memory if asked."""
    work = scenario.workload
    held = min(int(work.prompt * scenario.shared_prefix), work.prompt - 1)
    step = prefill_step(sequences=work.replica_batch, prompt=work.prompt - held, context=held)
    seconds = step_likely_s(plan, step, eager=True)
    if scenario.unfused_attention:
        seconds += _scores_bytes(scenario.spec, work) / (
            plan.rates.roof.bandwidth_bytes_per_s * work.layout.devices
        )
    return seconds


def _scores_bytes(spec: ModelSpec, work: Workload) -> float:
    """Scores of all prompts, written, read for the softmax, written, read again: four times the matrix."""
    pairs = work.prompt * (work.prompt + 1) / 2 * work.batch
    heads = sum(
        mixer.heads * group.count
        for group in spec.groups
        for mixer in group.layer.mixers
        if isinstance(mixer, Attention)
    )
    return 4 * heads * pairs * dtype_bytes(spec.dtype)


def weights_as(name: str) -> Technique:
    """The weights in another format."""
    return lambda scenario: replace(scenario, spec=apply_format(scenario.spec, name))


def cache_as(kv_dtype: str) -> Technique:
    """The KV cache in another type."""
    return lambda scenario: _with(scenario, kv_dtype=kv_dtype, kv_dtype_auto=False)


def batch_of(batch: int) -> Technique:
    """Another number of sequences."""
    return lambda scenario: _with(scenario, batch=batch)


def chunks_of(tokens: int) -> Technique:
    """Prefills in chunks of at most so many tokens."""
    return lambda scenario: _with(scenario, max_batched_tokens=tokens)


def layout_of(layout: Layout) -> Technique:
    """Another way to cut the work."""
    return lambda scenario: _with(scenario, layout=layout)


def device_of(device: Device) -> Technique:
    """Another device, the same number of them."""
    return lambda scenario: replace(scenario, device=device)


def prefix_cached(share: float) -> Technique:
    """So much of every prompt is in the cache already."""
    return lambda scenario: replace(scenario, shared_prefix=share)


def speculating(draft: Draft) -> Technique:
    """Several guesses a step."""
    return lambda scenario: replace(scenario, draft=draft)


def without_graphs(scenario: Scenario) -> Scenario:
    """Every kernel of a decode step started by the host."""
    return replace(scenario, eager_decode=True)


def without_fused_attention(scenario: Scenario) -> Scenario:
    """Attention scores written to memory and read again."""
    return replace(scenario, unfused_attention=True)


def split_phases(scenario: Scenario) -> Scenario:
    """Prefills on a second pool of the same size."""
    return replace(scenario, split=True)


def offloading(scenario: Scenario, missing_bytes: float, *, on_drive: bool = False) -> Scenario:
    """So many bytes of weights, over all devices, kept in the host's memory or on its drive."""
    kept = min(missing_bytes, float(weights_bytes(scenario.spec)))
    return replace(scenario, offloaded_bytes=kept, on_drive=on_drive)


def with_host_experts(scenario: Scenario) -> Scenario:
    """Routed experts in the host's memory. Raises InputError for a model without any."""
    if not any(isinstance(group.layer.mlp, MixtureOfExperts) for group in scenario.spec.groups):
        raise InputError("the model has no routed experts", value=scenario.spec.name)
    return replace(scenario, host_experts=True)


def _with(scenario: Scenario, **changes: object) -> Scenario:
    return replace(scenario, workload=replace(scenario.workload, **changes))  # type: ignore[arg-type]
