import numpy as np
import pytest

from tests.simulators.predictor.uncertainty.rows import residual
from trainscout.simulators.laboratory.uncertainty.coverage import calibrate
from trainscout.simulators.predictor.uncertainty.table import (
    ResidualTable,
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
    return ResidualTable(rows, Tuning())


def test_tuned_intervals_hold_what_they_say():
    tuning, found = calibrate(drawn(0, 0.05))
    assert (found.five_fold + found.per_source) / 2 == pytest.approx(0.8, abs=0.01)
    assert found.five_fold == pytest.approx(0.8, abs=0.05)
    assert 0.3 < tuning.tail_factor < 3
    # An 80 % interval of N(0, sqrt(0.1^2 + 0.05^2)) is 2 x 1.28 x 0.112 wide.
    assert np.log1p(found.median_width) == pytest.approx(0.287, rel=0.2)


def test_a_source_left_out_is_harder_where_sources_differ():
    alike = calibrate(drawn(1, 0.0))[1]
    apart = calibrate(drawn(1, 0.3))[1]
    assert apart.median_width > alike.median_width


def test_the_published_intervals_hold_75_to_85_percent():
    tuning, found = calibrate(published_residuals())
    assert tuning == published_residuals().tuning
    assert 0.75 <= found.five_fold <= 0.85
    assert 0.75 <= found.per_source <= 0.85
    assert found.host_bound == pytest.approx(0.8, abs=0.05)
    # A new GPU's interval is to hold on most GPUs, so it holds more than the level on average.
    assert found.per_gpu >= 0.8
    assert found.per_architecture >= 0.8


def test_a_new_gpu_is_as_uncertain_as_four_in_five_of_the_known():
    """Eleven GPUs, each off by its own hundredths: 80 % of them by up to eight."""
    rows = [residual(n, n / 100, f"s{n}", gpu=f"g{n}", architecture=f"a{n}") for n in range(11)]
    tuning, _ = calibrate(ResidualTable(rows, Tuning()))
    assert tuning.new_gpu == pytest.approx(0.08)


def test_every_publication_of_a_gpu_counts_the_same():
    many = [residual(n, 0.5, "many") for n in range(90)]
    few = [residual(100 + n, 0.1 * (-1) ** n, f"few {n}") for n in range(9)]
    tuning, _ = calibrate(ResidualTable(many + few, Tuning()))
    # Nine tenths of the publications were off by 0.1.
    assert tuning.new_gpu == pytest.approx(0.1)


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
    return ResidualTable(rows, Tuning())


def test_the_error_of_waits_for_the_host_follows_from_launch_bound_runs():
    tuning, found = calibrate(drawn(0, 0.05))
    assert tuning.host_error == 0.0
    assert (found.host_bound, found.per_gpu, found.per_architecture) == (None, None, None)
    tuning, found = calibrate(waiting(0.6))
    assert found.host_bound >= 0.75
    assert tuning.host_error > calibrate(waiting(0.0))[0].host_error
