"""A predicted need is a probability to fit, and that a band."""

import numpy as np
import pytest

from tests.simulators.jobs import TINY, make_job
from trainscout.simulators.predictor.memory.bands import (
    LEAST_FITS,
    MOST_NO,
    Spread,
    band_of,
    spread_of,
)
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.registry import get_simulator

CAPACITY = 80 * 2**30


def test_half_of_such_runs_fit_where_the_corrected_need_is_the_capacity() -> None:
    spread = Spread(bias=0.1, scale=0.05)
    assert spread.probability(CAPACITY * np.exp(-0.1), CAPACITY) == pytest.approx(0.5)
    # Tables of Student's t with two degrees of freedom: 90 % below 1.886, 2.5 % below -4.303.
    above, below = np.exp(-0.1 - 0.05 * 1.886), np.exp(-0.1 + 0.05 * 4.303)
    assert spread.probability(CAPACITY * above, CAPACITY) == pytest.approx(0.9, abs=1e-3)
    assert spread.probability(CAPACITY * below, CAPACITY) == pytest.approx(0.025, abs=1e-3)
    assert spread.probability(0, CAPACITY) == 1.0


@pytest.mark.parametrize(
    ("probability", "band"),
    [(1.0, "fits"), (LEAST_FITS, "fits"), (0.79, "tight"), (MOST_NO, "tight"), (0.019, "no")],
)
def test_bands(probability: float, band: str) -> None:
    assert band_of(probability) == band


def test_unknown_software_is_known_least() -> None:
    unknown, known = spread_of(Framework("somebody's")), spread_of(Framework("megatron_core"))
    assert unknown == spread_of(Framework("any"))
    assert unknown.scale >= known.scale
    assert spread_of(Framework("new", supersedes=("megatron_core",))) == known


@pytest.mark.parametrize("name", ["megatron_core", "nanotron", "undeclared"])
def test_what_is_beyond_doubt_is_in_the_band_no_and_nothing_else(name: str) -> None:
    needs = np.linspace(0.5, 1.8, 131) * CAPACITY
    spread = spread_of(Framework(name))
    chances = [spread.probability(need, CAPACITY) for need in needs]
    beyond = needs > spread.may_fit_bytes(CAPACITY)
    assert beyond.any()
    assert all((chance < MOST_NO) == no for chance, no in zip(chances, beyond, strict=True))


def test_a_prediction_says_its_band() -> None:
    memory = get_simulator("replay").simulate(make_job(TINY)).memory
    used = memory.capacity_bytes - memory.headroom_bytes
    spread = spread_of(Framework("undeclared"))
    assert memory.fit_probability == spread.probability(used, memory.capacity_bytes)
    assert memory.band == band_of(memory.fit_probability)
