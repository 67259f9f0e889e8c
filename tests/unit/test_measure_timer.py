"""The timer against devices whose every call takes a known time, on a clock that the tests turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rooflens.measure import timer
from rooflens.measure.timer import EventClock, Policy, TimingError, WallClock, sample


class Device:
    """Work that takes ``call_s(n)`` seconds for the n-th call; time passes only here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call_s: Callable[[int], float]) -> None:
        self.now, self.calls, self.call_s = 1000.0, 0, call_s
        self.batches: list[int] = []
        monkeypatch.setattr(timer.time, "perf_counter", lambda: self.now)

    def batch(self, calls: int) -> float:
        start = self.now
        for _ in range(calls):
            self.now += self.call_s(self.calls)
            self.calls += 1
        self.batches.append(calls)
        return self.now - start


POLICY = Policy(batch_s=0.05, min_batches=10, warm_up_s=0.1, max_s=5.0)


def test_steady_work_converges_with_full_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, lambda _: 1e-3)
    samples = sample(device.batch, POLICY)
    assert samples.converged
    assert samples.seconds == pytest.approx([1e-3] * 12)  # three groups of four
    assert samples.calls == 63  # 50 ms x 1.25 / 1 ms, rounded up
    assert samples.calls * 1e-3 >= POLICY.batch_s


@pytest.mark.parametrize("call_s", [2e-7, 1e-6, 3e-4, 0.049, 0.2])
def test_every_counted_batch_is_long_enough(monkeypatch: pytest.MonkeyPatch, call_s: float) -> None:
    device = Device(monkeypatch, lambda _: call_s)
    samples = sample(device.batch, replace(POLICY, max_s=60.0))
    assert samples.summary.median == pytest.approx(call_s)
    assert samples.calls * call_s >= POLICY.batch_s
    assert samples.converged


def test_warm_up_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first 100 calls take ten times as long: 0.1 s of warm-up goes by in them.
    device = Device(monkeypatch, lambda n: 1e-2 if n < 100 else 1e-3)
    samples = sample(device.batch, replace(POLICY, warm_up_s=1.0))
    assert max(samples.seconds) == pytest.approx(1e-3)


def test_a_device_that_gets_faster_gets_longer_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, lambda n: 1e-2 if n < 40 else 1e-3)
    samples = sample(device.batch, POLICY)
    assert samples.converged
    assert samples.calls * 1e-3 >= POLICY.batch_s
    assert samples.seconds[-1] == pytest.approx(1e-3)


def test_work_that_never_settles_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, lambda n: 1e-3 * (1 + (n // 60) % 7))
    samples = sample(device.batch, POLICY)
    assert not samples.converged
    assert device.now - 1000 < POLICY.warm_up_s + POLICY.max_s + 1


def test_slow_calls_are_still_sampled_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, lambda _: 7.0)
    samples = sample(device.batch, POLICY)
    assert samples.calls == 1
    assert len(samples.seconds) == 3
    assert not samples.converged


def test_the_limit_of_the_step_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, lambda n: 1e-3 * (1 + (n // 60) % 7))
    sample(device.batch, POLICY, stop_at=device.now + 0.5)
    assert device.now - 1000 < 1.5


def test_the_wall_clock_waits_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(timer.time, "perf_counter", lambda: len(log))
    batch = WallClock(lambda: log.append("wait")).batch(lambda call: log.append(f"call {call}"))
    assert batch(2) == 3  # two calls and the wait behind them
    assert log == ["wait", "call 0", "call 1", "wait"]


class FakeEvents:
    """``torch.cuda`` as far as the clock uses it; ``elapsed`` is what the events claim, in milliseconds."""

    def __init__(self, elapsed_ms: float) -> None:
        self.elapsed_ms, self.log = elapsed_ms, []

    def Event(self, *, enable_timing: bool) -> FakeEvents:  # noqa: N802
        assert enable_timing
        return self

    def record(self) -> None:
        self.log.append("record")

    def synchronize(self, device: object) -> None:
        self.log.append(f"synchronize {device}")

    def elapsed_time(self, last: FakeEvents) -> float:
        return self.elapsed_ms


def test_events_bracket_the_work_on_a_quiet_device(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 0.1])
    monkeypatch.setattr(timer.time, "perf_counter", lambda: next(ticks))
    events = FakeEvents(elapsed_ms=90.0)
    batch = EventClock(events, "cuda:1").batch(lambda call: events.log.append(f"call {call}"))
    assert batch(2) == pytest.approx(0.09)
    assert events.log == [
        "synchronize cuda:1", "record", "call 0", "call 1", "record", "synchronize cuda:1",
    ]  # fmt: skip


@pytest.mark.parametrize("elapsed_ms", [-3.0, 0.0, 200.0])
def test_events_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch, elapsed_ms: float) -> None:
    ticks = iter([0.0, 0.1])
    monkeypatch.setattr(timer.time, "perf_counter", lambda: next(ticks))
    batch = EventClock(FakeEvents(elapsed_ms), "cuda:0").batch(lambda call: None)
    with pytest.raises(TimingError, match="disagree with the wall clock"):
        batch(1)
