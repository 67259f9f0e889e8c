"""The comparison with other engines: pairing, repeats, checks and what is written, without any peer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import checks, quality
from benchmarks.peers.__main__ import known_formats, main, processor_slug, slug
from benchmarks.peers.cases import CASES, need, tokens_per_s
from benchmarks.peers.chart import write_charts
from benchmarks.peers.compare import least_s, paired_ratios, rows
from benchmarks.peers.engines import ENGINES, OURS, find_engines, form_of_file
from benchmarks.peers.install import ENVIRONMENTS
from benchmarks.peers.needs import needs_of
from benchmarks.peers.protocol import Case, prompt
from benchmarks.peers.results import Results
from benchmarks.peers.rounds import TRIES, Failure, Instruments, Sample, run_case
from benchmarks.peers.surroundings import Others, others_between
from benchmarks.peers.table import markdown
from benchmarks.peers.worker_process import WorkerError
from rooflens.hardware.local_cpu import read_cpu
from rooflens.measure.activity import Snapshot
from rooflens.models.read import read_model

ROOT = Path(__file__).parents[2]
QUIET, BUSY = Others(0.0, 0.0), Others(0.7, 0.0)


class FakeWorker:
    """Answers with a fixed time and notes who was awake meanwhile."""

    def __init__(self, seconds: float, *, dies: bool = False) -> None:
        self.seconds, self.dies, self.awake = seconds, dies, False
        self.ran = 0

    def ready(self, case: Case) -> None:
        if self.dies:
            raise WorkerError("out of memory")

    def run(self, case: Case) -> float:
        self.ran += 1
        return self.seconds

    def sleep(self) -> None:
        self.awake = False

    def wake(self) -> None:
        self.awake = True


def instruments(others: Callable[[], Others | None] = lambda: QUIET, **changes: Any) -> Instruments:
    given: dict[str, Any] = {
        "bandwidth": lambda: 50e9,
        "gemm": lambda: (2e12, 1e12),
        "watch": lambda name: others,
        "settle": lambda: None,
    }
    return Instruments(**{**given, **changes})


def run(
    workers: dict[str, Any], number: int = 0, using: Instruments | None = None, case: Case = CASES[0]
) -> tuple[list[Sample], list[Failure]]:
    samples: list[Sample] = []
    failures: list[Failure] = []
    run_case(
        workers,
        case,
        using or instruments(),
        weights="bf16",
        number=number,
        given_up=set(),
        keep=samples.append,
        fail=failures.append,
    )
    return samples, failures


def test_the_first_engine_changes_from_round_to_round() -> None:
    workers = {name: FakeWorker(1.0) for name in "abc"}
    orders = [[sample.engine for sample in run(workers, number)[0]] for number in range(3)]
    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]


def test_only_the_measured_engine_is_awake_and_none_during_a_probe() -> None:
    workers = {name: FakeWorker(1.0) for name in "abc"}
    awake: list[list[str]] = []

    def bandwidth() -> float:
        awake.append([name for name, worker in workers.items() if worker.awake])
        return 50e9

    def watch(name: str) -> Callable[[], Others | None]:
        assert not any(worker.awake for worker in workers.values())

        def stop() -> Others:
            assert [n for n, worker in workers.items() if worker.awake] == [name]
            return QUIET

        return stop

    run(workers, using=instruments(bandwidth=bandwidth, watch=watch))
    assert awake == [[]] * 4  # before, between and after three samples


def test_a_disturbed_sample_is_taken_again() -> None:
    answers = iter([BUSY, BUSY, QUIET])
    worker = FakeWorker(1.0)
    samples, _ = run({"a": worker}, using=instruments(lambda: next(answers)))
    assert worker.ran == 3
    assert [sample.disturbed for sample in samples] == [False]


def test_a_sample_that_stays_disturbed_is_kept_and_marked() -> None:
    worker = FakeWorker(1.0)
    samples, _ = run({"a": worker}, using=instruments(lambda: BUSY))
    assert worker.ran == TRIES
    assert [sample.disturbed for sample in samples] == [True]


def test_an_engine_that_fails_costs_only_itself() -> None:
    samples, failures = run({"a": FakeWorker(1.0), "bad": FakeWorker(1.0, dies=True), "c": FakeWorker(2.0)})
    assert [sample.engine for sample in samples] == ["a", "c"]
    assert failures == [Failure("bad", CASES[0].name, "out of memory")]


def test_matrix_rate_is_probed_for_prompts_alone() -> None:
    prefill, decode = Case("prefill", 512), Case("decode", 64)
    assert run({"a": FakeWorker(1.0)}, case=prefill)[0][0].gemm_flops_per_s == 2e12
    assert run({"a": FakeWorker(1.0)}, case=decode)[0][0].gemm_flops_per_s is None


def snapshot(wall: float, busy: float, stolen: float, total: float, **processes: float) -> Snapshot:
    by_pid = {int(pid[1:]): (pid, seconds) for pid, seconds in processes.items()}
    return Snapshot(wall, busy, stolen, total, 0.0, by_pid)


def test_others_are_what_no_process_of_ours_used() -> None:
    start = snapshot(0.0, 100.0, 0.0, 1000.0, p1=10.0, p2=20.0)
    end = snapshot(2.0, 104.0, 0.0, 1004.0, p1=12.5, p2=21.0, p3=0.2)
    # 4 busy seconds, 2.5 of them process 1's; 0.02 s of rounding let off, over 2 s.
    assert others_between(start, end, lambda pid: pid == 1).cores == pytest.approx((4.0 - 2.5 - 0.02) / 2)
    all_ours = snapshot(2.0, 103.7, 0.0, 1004.0, p1=12.5, p2=21.0, p3=0.2)
    assert others_between(start, all_ours, lambda pid: True).quiet
    stolen = others_between(start, snapshot(2.0, 100.0, 1.0, 1004.0), lambda pid: True)
    assert stolen.stolen_share == pytest.approx((1.0 - 0.02) / 4)
    assert not stolen.quiet


def test_attention_counts_at_its_own_matrix_rate() -> None:
    need = {"flops": 5e12, "attention_flops": 1e12}
    both = {"gemm_flops_per_s": 2e12, "attention_flops_per_s": 1e12}
    assert least_s(need, both) == pytest.approx(3.0)
    assert least_s({"flops": 5e12}, {"gemm_flops_per_s": 2e12}) == pytest.approx(2.5)


def test_attention_flops_are_those_over_the_cache() -> None:
    spec = read_model("qwen2.5-0.5b-instruct")
    short, long = (need(spec, Case("prefill", tokens), kv_dtype="bf16") for tokens in (512, 1024))
    weights = [each.flops - each.attention_flops for each in (short, long)]
    # Twice the tokens through the layers, but one row of logits in both.
    head = 2 * spec.vocab_size * 896
    assert weights[1] - head == pytest.approx(2 * (weights[0] - head))
    # Half of the square: tokens see themselves and what is before them.
    assert short.attention_flops == pytest.approx(24 * 14 * 4 * 64 * 512 * 513 / 2, rel=0.02)


def test_a_result_of_another_processor_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    results = Results.open(path, shape="tiny", threads=2)
    results.document["machine"]["cpu"]["model"] = 999
    path.write_text(json.dumps(results.document), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"of another run .*999.*: name another with --out"):
        Results.open(path, shape="tiny", threads=2)


def test_ratios_are_paired_by_round() -> None:
    ours = {0: {"seconds": 1.0}, 2: {"seconds": 4.0}}
    theirs = [{"round": 0, "seconds": 2.0}, {"round": 1, "seconds": 9.0}, {"round": 2, "seconds": 6.0}]
    assert paired_ratios(theirs, ours) == [2.0, 1.5]


def document(tmp_path: Path) -> dict[str, Any]:
    results = Results.open(tmp_path / "r.json", shape="tiny", threads=2)
    case = Case("decode", 64)
    facts = {
        "label": "bf16",
        "kv_dtype": "bf16",
        "versions": {"x": "1"},
        "needs": {case.name: {"read_bytes": 1e9, "flops": 1e9, "attention_flops": 0.0}},
        "check": {"prompts": 12, "equal": 1.0, "gap": 0.0, "error": None, "limit": 0.05, "passed": True},
    }
    for engine in (OURS, "llama.cpp"):
        results.add_engine(engine, "bf16", facts)
    seconds = {OURS: [0.02, 0.04, 0.02], "llama.cpp": [0.03, 0.06, 0.03]}
    for engine, times in seconds.items():
        for number, value in enumerate(times):
            results.keep(
                Sample(engine, "bf16", case.name, number, value, 50e9, None, None, 0.0, 0.0, number == 2)
            )
    results.document["probes"]["bf16"] = {"gemm_dtype": "bf16"}
    results.leave_out("vLLM CPU", "*", "cannot be installed: no wheel")
    results.finish_round("bf16")
    return results.document


def test_figures_leave_disturbed_samples_out(tmp_path: Path) -> None:
    ours, theirs = rows(document(tmp_path), CASES)
    assert (ours.engine, theirs.engine) == (OURS, "llama.cpp")
    assert ours.rate.count == 2
    assert ours.rate.median == pytest.approx((1 / 0.02 + 1 / 0.04) / 2)
    assert theirs.ratio is not None
    assert theirs.ratio.median == pytest.approx(1.5)
    assert ours.ratio is None
    # 1 GB in 20 and 40 ms at 50 GB/s: 1.0 and 0.5.
    assert ours.mbu == pytest.approx(0.75)
    assert (ours.disturbed, theirs.disturbed) == (1, 1)


def test_table_and_chart_are_written(tmp_path: Path) -> None:
    made = document(tmp_path)
    text = markdown(made)
    assert "| rooflens, bf16 | 37.5" in text
    assert "1.50 (1.50 to 1.50)" in text
    assert "vLLM CPU, *: cannot be installed: no wheel" in text
    png, svg = write_charts(made, tmp_path / "r.json")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "llama.cpp" in svg.read_text(encoding="utf-8")


def test_a_run_goes_on_from_its_file_and_refuses_another(tmp_path: Path) -> None:
    document(tmp_path)
    again = Results.open(tmp_path / "r.json", shape="tiny", threads=2)
    assert again.rounds("bf16") == 1
    assert len(again.document["samples"]) == 6
    with pytest.raises(SystemExit, match="another run"):
        Results.open(tmp_path / "r.json", shape="other", threads=2)
    facts = {**again.document["engines"][OURS]["bf16"], "versions": {"x": "2"}}
    with pytest.raises(SystemExit, match="name another file"):
        again.add_engine(OURS, "bf16", facts)


def test_a_wrong_model_does_not_pass() -> None:
    rng = np.random.default_rng(0)
    reference = [rng.standard_normal(5000).astype(np.float32) for _ in range(checks.PROMPTS)]

    class Engine:
        def __init__(self, tokens: list[int]) -> None:
            self.tokens = iter(tokens)

        def choose(self, tokens: Any, path: Path | None = None) -> int:
            return next(self.tokens)

    given = checks.prompts(5000)
    right = Engine([int(logits.argmax()) for logits in reference])
    verdict = checks.check(right, given, reference, "bf16", Path())
    assert (verdict.equal, verdict.gap, verdict.error, verdict.passed) == (1.0, 0.0, None, True)
    wrong = Engine([int(token) for token in rng.integers(0, 5000, checks.PROMPTS)])
    assert not checks.check(wrong, given, reference, "int4", Path()).passed
    assert checks.gap(reference[0], 5000) == float("inf")


def test_error_of_logits_ignores_a_common_shift() -> None:
    logits = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    assert checks.relative_error(logits + 5, logits) == pytest.approx(0.0, abs=1e-6)
    # Sizes about the mean: 1, 0, 1. Differences about theirs: 0.5, 0, 0.5.
    assert checks.relative_error(logits * 1.5, logits) == pytest.approx(0.5)


def test_needs_follow_the_plan_and_the_weights_held(tmp_path: Path) -> None:
    spec = read_model("Qwen/Qwen2.5-0.5B")
    case = Case("decode", 64, tokens=0)
    plain = need(spec, case, kv_dtype="bf16")
    # Two bytes a weight, the embedding's table read as the head; 24 layers x 2 heads x 64 x K and V.
    cache = 64 * 24 * 2 * 2 * 64 * 2
    assert plain.read_bytes == pytest.approx(494_032_768 * 2 + cache, rel=1e-3)
    own = needs_of(tmp_path, spec, [case], kv_dtype="int8", held_bytes=1000)
    assert own[case.name]["read_bytes"] == pytest.approx(1000 + cache / 2, rel=0.2)
    assert tokens_per_s(Case("decode", 64, batch=8), 0.1) == 80
    assert tokens_per_s(Case("prefill", 512), 0.5) == 1024


def test_prompts_are_the_same_everywhere() -> None:
    assert prompt(3, vocabulary=1000) == prompt(5, vocabulary=1000)[:3]
    assert prompt(8, vocabulary=1000, seed=1) != prompt(8, vocabulary=1000)
    assert all(0 <= token < 7 for token in prompt(100, vocabulary=7))


def test_engines_and_formats_are_known_by_name() -> None:
    assert [engine.name for engine in find_engines("vllm-cpu,llama.cpp")] == [OURS, "llama.cpp", "vLLM CPU"]
    with pytest.raises(SystemExit, match="no such engine: nothing"):
        find_engines("nothing")
    with pytest.raises(SystemExit, match="no such weights: int3"):
        known_formats("bf16,int3")
    assert slug("Intel(R) Xeon(R) Processor") == "intel-xeon-processor"
    cpu = dataclasses.replace(read_cpu(), name="AMD EPYC", family=26, model=2)
    assert processor_slug(cpu) == "amd-epyc-f26m2"
    assert processor_slug(dataclasses.replace(cpu, family=None)) == "amd-epyc"
    environments = {environment.name for environment in ENVIRONMENTS}
    assert {engine.environment for engine in ENGINES} <= {"", *environments}
    workers = ROOT / "benchmarks" / "peers" / "workers"
    assert all((workers / f"{engine.worker}.py").exists() for engine in ENGINES)


def test_every_option_is_documented() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for parameter in main.params:
        assert parameter.opts[0] in page, parameter.opts[0]


def test_quality_is_measured_where_something_follows() -> None:
    # Two tokens of a vocabulary of three, the third column of one engine is padding.
    reference = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [1 / 3] * 3], dtype=np.float32))
    padded = np.concatenate([reference, np.full((3, 1), 9.0, dtype=np.float32)], axis=1)
    same = quality.compare(reference, padded, [0, 1, 2])
    assert same.equal.tolist() == [True, True]
    assert same.kl == pytest.approx([0.0, 0.0], abs=1e-9)
    # 1/0.25 then 1/0.1, the geometric mean.
    assert same.along().perplexity == pytest.approx((4 * 10) ** 0.5)
    other = reference.copy()
    other[0] = np.log([0.25, 0.5, 0.25])
    found = quality.compare(reference, other, [0, 1, 2])
    assert found.equal.tolist() == [False, True]
    # 0.5 ln 2 + 0.25 ln 0.5
    assert found.kl[0] == pytest.approx(0.25 * np.log(2), rel=1e-6)
    assert found.since(1).along().equal == 1.0
    assert quality.joined([found, same]).along().equal == pytest.approx(3 / 4)
    with pytest.raises(ValueError, match="not finite"):
        quality.compare(reference, other * np.nan, [0, 1, 2])


def test_limits_take_choices_of_the_answers_and_divergence_of_both() -> None:
    def measured(*, answers: float, answers_kl: float, text_kl: float) -> quality.Quality:
        text = quality.Along(10, 0.9, text_kl, 20.0)
        return quality.Quality(text, text, text, quality.Along(10, answers, answers_kl, 1.5))

    assert measured(answers=0.98, answers_kl=0.005, text_kl=0.005).judged("int8")["passed"]
    assert not measured(answers=0.98, answers_kl=0.005, text_kl=0.005).judged("bf16")["passed"]
    assert not measured(answers=0.97, answers_kl=0.0, text_kl=0.0).judged("int4")["passed"]
    assert not measured(answers=1.0, answers_kl=0.0, text_kl=0.006).judged("stored")["passed"]
    assert not measured(answers=1.0, answers_kl=0.006, text_kl=0.0).judged("int8")["passed"]
    assert quality.same_start([1, 2, 3], [1, 2, 4]) == 2
    assert quality.same_start([1, 2], [1, 2, 4]) == 2


def test_a_form_that_fails_is_shown_and_does_not_count(tmp_path: Path) -> None:
    made = document(tmp_path)
    along = {"tokens": 9, "equal": 0.95, "kl": 0.002, "perplexity": 31.0}
    parts = dict.fromkeys(("text", "prompt", "steps", "answers"), along)
    same = {"tokens": 64, "equal_start": 20}
    made["reference"] = {"by": "the reference", "text": along, "held_against": None}
    for engine, passed in ((OURS, True), ("llama.cpp", False)):
        facts = made["engines"][engine]["bf16"]
        measured = {"quality": {**parts, "passed": passed}, "same_text": same}
        made["engines"][engine]["bf16"] = {**facts, **measured}
    text = markdown(made)
    assert "| llama.cpp, bf16 (**fails quality: does not count**) | 25.0" in text
    assert (
        "| llama.cpp | bf16: bf16 | 95.00% (95.00%) | 0.00200, 0.00200 (0.00200, 0.00200) | 31.000 |" in text
    )
    assert "20 of 64 | **fails** |" in text
    assert [row.counts for row in rows(made, CASES)] == [True, False]
    assert "no ratio below counts" not in text
    made["engines"][OURS]["bf16"]["quality"]["passed"] = False
    assert "no ratio below counts" in markdown(made)
    assert "quality fails" in write_charts(made, tmp_path / "r.json")[1].read_text(encoding="utf-8")


def test_forms_of_a_file() -> None:
    engines = {engine.name: engine for engine in ENGINES}
    stored = form_of_file(engines[OURS], "stored", "model.Q4_1")
    assert stored is not None
    assert (stored.held, stored.label) == ("stored", "model.Q4_1")
    int8 = form_of_file(engines[OURS], "int8", "model.Q4_1")
    assert int8 is not None
    assert (int8.held, int8.label) == ("int8", "int8, groups of 32, made of model.Q4_1")
    assert form_of_file(engines["llama.cpp"], "int8", "model.Q4_1") is None
    assert form_of_file(engines["vLLM CPU"], "stored", "model.Q4_1") is None


def test_a_probe_is_shared_by_neighbours_unless_one_was_disturbed() -> None:
    probes = iter([10e9, 20e9, 30e9, 40e9, 50e9, 60e9])
    answers = iter([QUIET, BUSY, QUIET, QUIET])
    workers = {name: FakeWorker(1.0) for name in "abc"}
    samples, _ = run(workers, using=instruments(lambda: next(answers), bandwidth=lambda: next(probes)))
    # a: 10, 20; b: 20, 30 disturbed, again: 40, 50; c goes on from there.
    assert [sample.read_bytes_per_s for sample in samples] == [15e9, 45e9, 55e9]


def test_committed_results_are_shown_as_they_are() -> None:
    for path in sorted((ROOT / "benchmarks" / "results").glob("peers-*.json")):
        stored = json.loads(path.read_text(encoding="utf-8"))
        assert markdown(stored) == path.with_suffix(".md").read_text(encoding="utf-8")
