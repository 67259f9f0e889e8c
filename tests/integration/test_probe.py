"""The probe on this machine's CPU with next to no effort: every step, every refusal, every interrupt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rooflens.cli.main import main  # noqa: E402
from rooflens.errors import CapacityError, InputError, NotFoundError  # noqa: E402
from rooflens.measure import session  # noqa: E402
from rooflens.measure.probes import cpu_memory  # noqa: E402
from rooflens.measure.probes import target as target_module  # noqa: E402
from rooflens.measure.probes.attention import decode_bytes, prefill_flops  # noqa: E402
from rooflens.measure.probes.linear_kernels import linear_kernels  # noqa: E402
from rooflens.measure.probes.operands import integers, normal  # noqa: E402
from rooflens.measure.probes.pinned import PinnedThreads  # noqa: E402
from rooflens.measure.probes.run import AttentionShape, Effort, LinearShape, Run, Shapes  # noqa: E402
from rooflens.measure.probes.target import Target, choose_cpus, open_target  # noqa: E402
from rooflens.measure.records import ProbeRecord  # noqa: E402
from rooflens.measure.roofs import probe_device  # noqa: E402
from rooflens.measure.session import run_probe, shapes_of  # noqa: E402
from rooflens.measure.storage import load_probe  # noqa: E402
from rooflens.measure.timer import Policy, TimingError, WallClock  # noqa: E402
from rooflens.units import KIB, MIB  # noqa: E402

CPU = torch.device("cpu")
TINY = Effort(
    name="tiny", limit_s=60.0, policy=Policy(batch_s=1e-3, min_batches=1, warm_up_s=0.0, max_s=2e-3),
    largest_call_s=0.1, largest_cube=64, standard_shapes=False, whole_cache_sweep=False, every_dtype=False,
    batch_sizes=(1, 8), model_linears=1, prompt_tokens=128, compiled=False, idle_s=0.0, settle_s=1e-3,
)  # fmt: skip
SHAPES = Shapes(
    model="small",
    linears=(LinearShape("mlp.up_proj", n=256, k=128, count=2), LinearShape("mlp.down_proj", n=128, k=256)),
    attention=AttentionShape(heads=4, kv_heads=2, head_dim=32),
    streamed=LinearShape("mlp.up_proj", n=256, k=128),
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Working sets of megabytes instead of gigabytes, one thread, and a home of the test's own."""
    monkeypatch.setattr(target_module, "MIN_WORKING_SET_BYTES", 4 * MIB)
    monkeypatch.setattr(cpu_memory, "CHUNK_BYTES", MIB)
    monkeypatch.setenv("ROOFLENS_HOME", str(tmp_path / "home"))
    # On a busy machine each parallel region can take milliseconds.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def target() -> Target:
    return replace(open_target("cpu", threads=1), caches={"L1": 64 * KIB, "L2": MIB})


def test_every_step_on_the_cpu(target: Target) -> None:
    threads = torch.get_num_threads()
    seen: list[tuple[float, str]] = []
    record = run_probe(target, TINY, shapes=SHAPES, progress=lambda share, title: seen.append((share, title)))
    assert record.finished
    names = {item.name for item in record.measurements}
    assert {"memory.read", "memory.copy", "linear.bf16.m1", "linear.bf16.m8", "dispatch.tiny_op"} <= names
    assert {"gemm.fp32.64x64x64", "gemm.bf16.64x64x64", "gemm.bf16.512x256x128"} <= names
    assert any(name.startswith("cache.") for name in names)
    assert any(name.startswith("attention.decode.") for name in names)
    assert any(name.startswith("sustained.") for name in names)
    assert {"burst.bf16", "sustained.bf16"} <= names
    for item in record.measurements:
        assert item.samples_s
        assert item.value > 0
        assert item.low <= item.value <= item.high
    assert seen[-1] == (1.0, "done")
    assert torch.get_num_threads() == threads
    again = ProbeRecord.from_dict(json.loads(json.dumps(record.to_dict(), allow_nan=False)))
    assert again == record
    device = probe_device(record)
    assert device.bandwidth_evidence == "measured"
    assert {"fp32", "bf16", "int8"} <= set(device.peaks_flops_per_s)


def test_an_interrupt_keeps_what_is_done(target: Target) -> None:
    def interrupt(share: float, title: str) -> None:
        if title == "linear.bf16.m1":
            raise KeyboardInterrupt

    record = run_probe(target, TINY, shapes=SHAPES, progress=interrupt)
    assert not record.finished
    assert record.measurements[-1].name == "linear.bf16.m1"
    assert probe_device(record).bandwidth_bytes_per_s
    assert ProbeRecord.from_dict(record.to_dict()) == record


def test_memory_and_dispatch_with_several_threads(target: Target) -> None:
    several = replace(target, threads=2, cpus=choose_cpus(2))
    run = Run(several, TINY, SHAPES)
    figures = {item.name: item for item in cpu_memory.probe_cpu_memory(run)}
    assert list(figures) == ["memory.read", "memory.read_one_thread", "memory.copy"]
    assert figures["memory.read"].amount == 4 * MIB
    assert figures["memory.read_one_thread"].amount == 2 * MIB
    assert figures["memory.copy"].amount == 4 * MIB  # half is read, half is written
    assert set(figures["memory.read"].tried) == {reader.name for reader in cpu_memory.READERS}


def test_running_out_of_memory_ends_a_step_only(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(run: Run) -> Iterator[Any]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("rooflens.measure.probes.matmul.probe_matmul", full)
    record = run_probe(target, TINY, shapes=SHAPES)
    assert record.finished
    assert "CUDA out of memory" in {item.why for item in record.skipped}
    assert record.find("dispatch.tiny_op") is not None


def test_what_was_missed_or_disturbed_is_measured_again(target: Target) -> None:
    run = Run(target, TINY, SHAPES, stop_at=0.0)
    assert not run.wants("gemm.bf16")
    run.stop_at, run.again = float("inf"), True
    assert run.wants("gemm.bf16")
    steady = _figure("gemm.bf16.a", (1.0, 1.0))
    run.keep(steady)
    assert not run.wants("gemm.bf16")
    run.keep(_figure("gemm.fp32.a", (1.0, 2.0, 3.0)))
    assert run.wants("gemm.fp32")
    run.keep(_figure("gemm.fp32.a", (0.5, 0.5)))
    assert run.done["gemm.fp32.a"].value == 2  # of two runs the better one
    assert run.done["gemm.fp32.a"].tried == {"other run": 0.5}
    assert run.everything_skipped() == ()


def _figure(name: str, samples: tuple[float, ...]) -> Any:
    from rooflens.measure.records import Measurement

    return Measurement(name, "flops_per_s", 1.0, samples, 1, False, "m")


def test_too_little_memory_is_refused_before_any_work(target: Target) -> None:
    with pytest.raises(CapacityError, match="not enough free memory"):
        run_probe(replace(target, available_bytes=5 * MIB), TINY)


def test_every_kernel_is_checked(target: Target) -> None:
    kernels = [kernel for kernel in linear_kernels(target) if kernel.problem() is None]
    assert {"fp32", "bf16", "int8"} <= {kernel.dtype for kernel in kernels}
    for kernel in kernels:
        x, weight = kernel.inputs(32, 256), kernel.weight(256, 256)
        y = kernel.pack(weight)(x)
        with pytest.raises(TimingError, match="wrong product"):
            kernel.check(x, weight, y * 1.5)
        with pytest.raises(TimingError, match="wrong product"):
            kernel.check(x, weight, torch.zeros_like(y))


def test_a_kernel_that_raises_is_explained_not_used(target: Target) -> None:
    def broken(weight: Any) -> Any:
        raise RuntimeError("no such kernel\nlong trace")

    kernel = replace(next(iter(linear_kernels(target))), pack=broken)
    assert kernel.problem() == "no such kernel"


def test_readers_read_everything() -> None:
    part = normal(MIB // 4, dtype=torch.float32, device=CPU)
    for reader in cpu_memory.READERS:
        cpu_memory._check(reader, part)
        lazy = replace(reader, read=lambda part, read=reader.read: read(part[: part.numel() // 2]))
        with pytest.raises(TimingError, match="wrong result"):
            cpu_memory._check(lazy, part)


def test_operands_are_random_and_repeatable() -> None:
    x = normal(64, 1000, dtype=torch.bfloat16, device=CPU)
    assert abs(float(x.float().mean())) < 0.02
    assert abs(float(x.float().std()) - 1) < 0.02
    assert torch.equal(x, normal(64, 1000, dtype=torch.bfloat16, device=CPU))
    levels = integers(64, 1000, device=CPU)
    assert (int(levels.min()), int(levels.max())) == (-127, 127)


def test_large_operands_repeat_a_block_at_other_addresses() -> None:
    x = normal(9 * MIB, dtype=torch.float32, device=CPU)
    block = 4 * MIB + 4099
    assert torch.equal(x[:block], x[block : 2 * block])
    assert not torch.equal(x[: 4 * MIB], x[4 * MIB : 8 * MIB])


def test_pinned_threads_work_together_and_leave_no_trace() -> None:
    cpus, threads = choose_cpus(1), torch.get_num_threads()
    before = os.sched_getaffinity(0)
    with PinnedThreads(cpus, count=2) as pool:
        where = pool.each(lambda index: (index, os.sched_getaffinity(0), torch.get_num_threads()))
        assert where[0] == (0, {cpus[0]}, 1)
        assert where[1][0] == 1
        calls: list[tuple[int, int]] = []
        seconds = pool.batch([lambda call, i=i: calls.append((i, call)) for i in range(2)])(3)
        assert seconds > 0
        assert sorted(calls) == [(i, call) for i in range(2) for call in range(3)]
        with pytest.raises(ZeroDivisionError):
            pool.each(lambda index: 1 // index)
        assert pool.each(lambda index: index) == [0, 1]  # an error does not end the threads
    assert os.sched_getaffinity(0) == before
    assert torch.get_num_threads() == threads


def test_cpus_are_different_cores_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 6})
    for cpu, siblings in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert choose_cpus(3, root=tmp_path) == (0, 2, 6)
    assert choose_cpus(5, root=tmp_path) == (0, 2, 6, 1, 3)


def test_levels_of_working_sets(target: Target) -> None:
    alone = replace(target, cores=1)
    sizes = (16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 512 * KIB, MIB)
    assert [alone.level_of(size) for size in sizes] == ["L1", "L1", "", "L2", "L2", ""]
    assert cpu_memory.sweep_sizes(alone, whole=False) == [32 * KIB, 512 * KIB]
    assert cpu_memory.sweep_sizes(alone, whole=True)[-1] == 4 * MIB


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "cpu:1", "", "gpu0"])
def test_unknown_devices(name: str) -> None:
    with pytest.raises(NotFoundError, match=r"allowed: .*cpu"):
        open_target(name)


@pytest.mark.parametrize("threads", [0, -1, 100_000])
def test_unusable_threads(threads: int) -> None:
    with pytest.raises(InputError, match="--threads is not usable"):
        open_target("cpu", threads=threads)


def test_attention_is_counted_as_the_plan_counts_it() -> None:
    shape = AttentionShape(heads=4, kv_heads=2, head_dim=32)
    # 4 heads x 4 x 32 FLOP a pair, 8 x 9 / 2 visible pairs; 2 x 2 x 32 elements of 2 B x 4096 tokens.
    assert prefill_flops(shape, 8) == 4 * 4 * 32 * 36
    assert decode_bytes(shape, 2) == 2 * 2 * 32 * 2 * 4096


def test_shapes_of_a_model() -> None:
    from rooflens.api import read_spec_of

    shapes = shapes_of(read_spec_of("Qwen/Qwen2.5-0.5B-Instruct"))
    found = {(shape.n, shape.k): shape.count for shape in shapes.linears}
    assert found[(896, 4864)] == 24  # the down projection of every layer
    assert shapes.attention == AttentionShape(heads=14, kv_heads=2, head_dim=64)
    assert (shapes.streamed.n, shapes.streamed.k) == (2 * 4864, 896)  # gate and up, fused
    from rooflens.api import dense

    with pytest.raises(InputError.__base__, match="no shapes"):  # type: ignore[arg-type]
        shapes_of(dense(params=8e9, kv_bytes_per_token=131072))


class Accelerator(Target):
    """An accelerator that is the CPU: the same steps without its clock."""

    @property
    def clock(self) -> WallClock:
        return WallClock()

    def empty_cache(self) -> None:
        pass


def test_an_accelerators_steps(target: Target) -> None:
    pretended = Accelerator(
        device=CPU, kind="mps", name="pretended", memory_bytes=10**9, available_bytes=10**9,
        caches={"L2": 64 * KIB},
    )  # fmt: skip
    record = run_probe(pretended, TINY, shapes=SHAPES)
    names = {item.name for item in record.measurements}
    assert {"memory.copy", "linear.bf16.m1", "dispatch.enqueue", "gemm.bf16.64x64x64"} <= names
    assert "memory.read" not in names
    assert any("Triton is not there" in item.why for item in record.skipped)
    # Without a streaming kernel the skinny multiplies are the read roof.
    assert probe_device(record).bandwidth_bytes_per_s == max(item.value for item in record.under("linear"))


TRITON = """
import torch
from rooflens.measure.probes import device_memory, target
from rooflens.measure.probes.run import QUICK, Run, Shapes
from rooflens.measure.probes.triton_read import BLOCK_ELEMENTS, StreamingSum
from rooflens.measure.timer import Policy, WallClock
from dataclasses import replace

data = torch.randn(BLOCK_ELEMENTS * 37, generator=torch.Generator().manual_seed(0))
for passes in (1, 3):
    got = StreamingSum(torch.device("cpu"), 2)(data, passes).double().sum()
    assert abs(got - passes * data.double().sum()) < 1e-2, (passes, got)

class Pretended(target.Target):
    clock = WallClock()

target.MIN_WORKING_SET_BYTES = device_memory._CALL_BYTES = device_memory._SMALLEST_SET_BYTES = 2**20
device = Pretended(torch.device("cpu"), "xpu", "pretended", None, None, caches={"L2": 2**20}, cores=1)
effort = replace(QUICK, policy=Policy(batch_s=1e-3, min_batches=1, warm_up_s=0.0, max_s=0.0, fewest=1))
run = Run(device, effort, Shapes())
names = [item.name for item in device_memory.probe_device_memory(run)]
assert names == ["memory.read", "memory.copy"], (names, run.skipped)
names = [item.name for item in device_memory.probe_device_caches(run)]
assert names == ["cache.1048576", "cache.2097152", "cache.4194304"], (names, run.skipped)
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_the_triton_kernel_under_its_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", TRITON], check=True, env=environment, timeout=120)


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["probe", *arguments])
    return int(stopped.value.code or 0)


@pytest.fixture
def _tiny_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rooflens.measure.probes.run.QUICK", TINY)
    monkeypatch.setattr("rooflens.measure.probes.run.Shapes", lambda: SHAPES)
    small = replace(target_module.read_cpu(), caches=(("L1d", 64 * KIB), ("L2", MIB)))
    monkeypatch.setattr(target_module, "read_cpu", lambda: small)


@pytest.mark.usefixtures("_tiny_command")
def test_json_is_the_saved_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "probe.json"
    assert _run("--quick", "--device", "cpu", "--threads", "1", "-o", str(path), "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(path.read_text())
    assert printed["device"]["threads"] == 1
    assert load_probe(path).mode == "tiny"
    assert _run("--from", str(path), "--lab") == 0
    text = capsys.readouterr().out
    assert "read (decode roof)" in text
    assert "A big matmul against a big copy" in text
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.usefixtures("_tiny_command")
def test_local_is_the_saved_probe(capsys: pytest.CaptureFixture[str]) -> None:
    from rooflens.api import resolve_device

    assert _run("--quick", "--device", "cpu", "--threads", "1") == 0
    assert _run("--from", "latest", "--json") == 0
    printed = json.loads(capsys.readouterr().out.partition("\n{")[2].join(("{", "")))
    local = resolve_device("local")
    assert local.bandwidth_bytes_per_s == printed["roofs"]["read_bytes_per_s"]
    assert _run("--from", "latest", "--compare", "latest", "--lang", "zh") == 0
    assert "变化" in capsys.readouterr().out


@pytest.mark.usefixtures("_tiny_command")
def test_an_interrupted_command_saves_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(run: Run) -> Iterator[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr("rooflens.measure.probes.dispatch.probe_dispatch", interrupted)
    path = tmp_path / "probe.json"
    assert _run("--quick", "--device", "cpu", "--threads", "1", "-o", str(path)) == 130
    assert "Interrupted" in capsys.readouterr().out
    assert not load_probe(path).finished


@pytest.mark.usefixtures("_tiny_command")
def test_an_interrupt_before_the_first_figure_saves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(run: Run) -> Iterator[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr("rooflens.measure.probes.cpu_memory.probe_cpu_memory", interrupted)
    assert _run("--quick", "--device", "cpu", "--threads", "1", "-o", str(tmp_path / "probe.json")) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--device", "tpu"], "device is not in this machine"),
        (["--device", "cpu", "--threads", "0"], "--threads is not usable"),
        (["--threads", "two"], "two"),
        (["-o", "none/probe.json"], "cannot write the probe record"),
        (["--model", "no-such-model"], "no-such-model"),
        (["--from", "none.json"], "none.json"),
        (["--from", "latest"], "no saved probe"),
        (["--from", "latest", "--quick"], "--quick has no meaning with --from"),
        (["--compare", "none.json"], "none.json"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str],
    what: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(session, "run_probe", lambda *_, **__: pytest.fail("measured in spite of bad input"))
    assert _run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert what in captured.err


def test_not_enough_memory_at_the_command_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_module, "available_memory_bytes", lambda: MIB)
    assert _run("--device", "cpu", "--json") == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert "not enough free memory" in error["what"]


def test_without_torch_the_extra_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rooflens.measure.probes.find_spec", lambda name: None)
    assert _run() == 2
    assert "pip install 'rooflens[runtime]'" in capsys.readouterr().err
