"""Arithmetic of timing on a clock the test owns."""

from __future__ import annotations

import pytest

from trainscout.simulators.laboratory.device.timing import (
    MOST_CALLS,
    SUSTAINED_S,
    WARM_UP_CALLS,
    Call,
    burst_s,
    calls_for,
    sustained_s,
)


class FakeClock:
    """A device that is slower for its first calls, and again once it is hot."""

    def __init__(self, once_s: float, hot_after_s: float = float("inf")) -> None:
        self.once_s, self.hot_after_s = once_s, hot_after_s
        self.elapsed_s, self.calls = 0.0, 0

    def __call__(self, call: Call, count: int) -> float:
        total = 0.0
        for _ in range(count):
            call()
            self.calls += 1
            cold = 10.0 if self.calls <= WARM_UP_CALLS else 1.0
            hot = 1.25 if self.elapsed_s > self.hot_after_s else 1.0
            total += self.once_s * cold * hot
            self.elapsed_s += self.once_s * cold * hot
        return total


def test_burst_leaves_the_cold_calls_out() -> None:
    assert burst_s(FakeClock(3e-4), lambda: None) == pytest.approx(3e-4)


def test_sustained_is_what_the_hot_device_does() -> None:
    clock = FakeClock(1e-3, hot_after_s=SUSTAINED_S / 4)
    clock.calls = WARM_UP_CALLS
    assert sustained_s(clock, lambda: None, 1e-3) == pytest.approx(1.25e-3)
    assert clock.elapsed_s >= SUSTAINED_S - 1e-9


@pytest.mark.parametrize(
    ("fill_s", "once_s", "calls"), [(1e-2, 1e-3, 10), (1e-3, 1.0, 1), (1.0, 1e-12, MOST_CALLS)]
)
def test_calls_that_fill_a_time(fill_s: float, once_s: float, calls: int) -> None:
    assert calls_for(fill_s, once_s) == calls
