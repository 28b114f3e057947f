import numpy as np
import pytest

from simulators.uncertainty.coverage import calibrate
from simulators.uncertainty.table import ResidualTable, Tuning, published_residuals
from tests.simulators.uncertainty.rows import residual


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
