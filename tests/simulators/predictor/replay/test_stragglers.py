"""The slowest of many GPUs, against closed forms of normal order statistics."""

from __future__ import annotations

import math

import pytest

from trainscout.simulators.predictor.replay.prices import slowest_excess


def test_one_gpu_is_as_fast_as_priced() -> None:
    assert slowest_excess(1, 0.02) == 0


@pytest.mark.parametrize(
    ("ranks", "expected_maximum"),
    # E[max] of 2 and 3 normals in closed form, of 10, 100 and 1000 as tabulated (Tippett 1925).
    [
        (2, 1 / math.sqrt(math.pi)),
        (3, 1.5 / math.sqrt(math.pi)),
        (10, 1.53875),
        (100, 2.50759),
        (1000, 3.24144),
    ],
)
def test_expected_maximum(ranks: int, expected_maximum: float) -> None:
    assert slowest_excess(ranks, 0.01) == pytest.approx(0.01 * expected_maximum, rel=0.05)


def test_more_ranks_are_never_faster() -> None:
    excesses = [slowest_excess(2**power, 0.02) for power in range(18)]
    assert excesses == sorted(excesses)
    assert excesses[-1] < 0.1
