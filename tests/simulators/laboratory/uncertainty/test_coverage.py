from dataclasses import replace

import numpy as np
import pytest

from tests.simulators.predictor.uncertainty.rows import FEATURES, residual, table_of
from trainscout.simulators.laboratory.uncertainty.coverage import calibrate, coverage
from trainscout.simulators.predictor.uncertainty.interval import log_interval
from trainscout.simulators.predictor.uncertainty.table import (
    Tuning,
    published_residuals,
)


def drawn(seed, source_spread):
    """Twenty sources of thirty runs, each with a common error and errors of its own."""
    rng = np.random.default_rng(seed)
    rows = []
    for source in range(20):
        common = rng.normal(0.1, source_spread)
        for _ in range(30):
            size = int(2 ** rng.integers(3, 9))
            rows.append(
                residual(len(rows), common + rng.normal(0, 0.1), str(source), num_gpus=size)
            )
    return table_of(rows, Tuning())


def test_tuned_intervals_hold_what_they_say():
    tuning, found = calibrate(drawn(0, 0.05))
    assert found.per_source == pytest.approx(0.8, abs=0.01)
    assert found.five_fold == pytest.approx(0.8, abs=0.05)
    assert 0.3 < tuning.tail_factor < 3
    # An 80 % interval of N(0, sqrt(0.1^2 + 0.05^2)) is 2 x 1.28 x 0.112 wide.
    assert np.log1p(found.median_width) == pytest.approx(0.287, rel=0.2)


def test_a_source_left_out_is_harder_where_sources_differ():
    alike = calibrate(drawn(1, 0.0))[1]
    apart = calibrate(drawn(1, 0.3))[1]
    assert apart.median_width > alike.median_width


@pytest.fixture(scope="module")
def published():
    return calibrate(published_residuals())


def strangers(found):
    kinds = ("source", "framework", "cluster", "gpu", "architecture")
    return [getattr(found, f"per_{kind}") for kind in kinds]


def test_the_published_intervals_hold_75_to_85_percent_of_strangers(published):
    tuning, found = published
    assert tuning == published_residuals().tuning
    assert all(0.75 <= held <= 0.85 for held in strangers(found))
    assert found.host_bound >= 0.75


def test_the_published_intervals_are_no_wider_than_the_level_asks(published):
    """Small groups go out of their intervals as a whole, so their mean jumps over the level."""
    tuning, found = published
    narrower = replace(tuning, tail_factor=tuning.tail_factor + 0.01)
    fewer = coverage(published_residuals(), narrower)
    assert np.mean(strangers(fewer)) < 0.8 <= np.mean(strangers(found))


def test_a_new_gpu_reaches_as_far_as_gpus_are_apart():
    """Twelve GPUs, each off by its own tenths, on which all publications agree."""

    def drawn(named):
        rng = np.random.default_rng(5)
        return [
            residual(4 * gpu + n, error + rng.normal(0, 0.01), f"s{gpu} {n}", **named(gpu))
            for gpu, error in enumerate(rng.normal(0, 0.2, 12))
            for n in range(4)
        ]

    apart = drawn(lambda gpu: {"gpu": f"g{gpu}", "architecture": f"a{gpu}"})
    tuning, found = calibrate(table_of(apart, Tuning()))
    assert tuning.new_gpu > 0.1
    assert found.per_gpu >= 0.8
    # One GPU's publications tell each other what its error is: nothing is left to reach for.
    assert calibrate(table_of(drawn(lambda gpu: {}), Tuning()))[0].new_gpu == 0


def test_software_and_fabrics_that_nobody_ran_have_wider_bars():
    rows = [
        residual(n, 0.05 * (n % 7 - 3) + 0.2 * (n % 3 - 1), f"s{n % 9}", framework=f"f{n % 3}")
        for n in range(90)
    ]
    tuning = calibrate(table_of(rows, Tuning()))[0]
    assert tuning.new_framework > 1.1
    table = table_of(rows, tuning)
    known = log_interval(table, replace(FEATURES, framework="f1"))
    for stranger in (
        replace(FEATURES, framework="undeclared"),
        replace(FEATURES, framework="undeclared", fabric="carrier pigeons 1"),
    ):
        wider = log_interval(table, stranger)
        assert wider[1] - wider[0] > known[1] - known[0]
        known = wider


def waiting(error, seed=3):
    """Steps that wait for the host, each publication's for ``1 + error`` of that on average."""
    rng = np.random.default_rng(seed)
    rows = []
    for source in range(20):
        host = error * rng.standard_normal()
        for _ in range(10):
            share = rng.uniform(0.0, 0.6)
            value = share * host + rng.normal(0, 0.03)
            rows.append(residual(len(rows), value, str(source), host_share=share))
    return table_of(rows, Tuning())


def test_the_error_of_waits_for_the_host_follows_from_launch_bound_runs():
    tuning, found = calibrate(drawn(0, 0.05))
    assert tuning.host_error == 0.0
    assert (found.host_bound, found.per_gpu, found.per_architecture) == (None, None, None)
    tuning, found = calibrate(waiting(0.6))
    assert found.host_bound >= 0.75
    assert tuning.host_error > calibrate(waiting(0.0))[0].host_error
