from dataclasses import replace

import numpy as np
import pytest

from tests.simulators.predictor.uncertainty.rows import FEATURES, residual, table_of
from trainscout.simulators.laboratory.published.published import stored_coverage
from trainscout.simulators.laboratory.uncertainty.coverage import LEFT_OUT, coverage
from trainscout.simulators.predictor.uncertainty.interval import log_interval
from trainscout.simulators.predictor.uncertainty.table import published_residuals


def drawn(seed, source_spread, sources=40, **named):
    """Sources of ten runs, each with a common error and errors of its own; every other in view."""
    rng = np.random.default_rng(seed)
    rows = []
    for source in range(sources):
        common = rng.normal(0.1, source_spread)
        own = {name: of(source) for name, of in named.items()}
        for _ in range(10):
            value = common + rng.normal(0, 0.1)
            size = int(2 ** rng.integers(3, 9))
            test = 0 if source % 2 else 1 + source % 7
            own |= {"blind_test": test, "num_gpus": size}
            rows.append(residual(len(rows), value, str(source), **own))
    return table_of(rows)


def test_intervals_hold_what_they_say():
    found = coverage(drawn(0, 0.05))
    assert (found.n, found.publications) == (200, 20)
    assert found.inside["publication"] == pytest.approx(0.8, abs=0.05)
    assert found.inside["publication"] + found.faster + found.slower == pytest.approx(1)
    # An 80 % interval of N(0, sqrt(0.1^2 + 0.05^2)) is 2 x 1.28 x 0.112 wide.
    assert np.log1p(found.width) == pytest.approx(0.287, rel=0.2)


def test_a_higher_level_holds_more():
    table = drawn(0, 0.05)
    shares = [coverage(table, level).inside["publication"] for level in (0.5, 0.8, 0.95)]
    assert shares == sorted(set(shares))


def test_a_source_left_out_is_harder_where_sources_differ():
    assert coverage(drawn(1, 0.3)).width > coverage(drawn(1, 0.0)).width


def test_runs_in_view_tell_of_others_and_are_not_counted():
    """The same blind runs, beside others in view that were far off."""
    blind = [residual(n, 0.01 * (n % 5), f"b{n % 9}") for n in range(90)]
    seen = [residual(100 + n, 0.5, f"v{n % 9}", blind_test=0) for n in range(90)]
    alone, beside = (coverage(table_of(rows)) for rows in (blind, blind + seen))
    assert alone.n == beside.n == 90
    assert beside.width > alone.width
    assert beside.inside["publication"] == 1


def test_what_there_is_none_of_has_no_share():
    assert set(coverage(drawn(0, 0.05)).inside) == {"publication", "next_test"}
    several = drawn(0, 0.05, gpu=lambda n: f"g{n % 4}", vendor=lambda n: f"v{n % 4 // 2}")
    assert set(coverage(several).inside) == {
        *("publication", "gpu", "cluster", "other_vendor", "next_test")
    }


def test_a_test_is_told_nothing_by_itself_and_later_ones():
    """Tests from the fifth on err by a half, all those before by nothing."""
    rows = [
        residual(n, 0.5 * (n % 8 >= 4) + n / 1e5, f"s{n % 16}", blind_test=1 + n % 8)
        for n in range(160)
    ]
    found = coverage(table_of(rows)).inside
    # The sixth is told by the fifth, but by more publications of those before.
    assert found["next_test"] < 0.8 < found["publication"]


def test_gpus_whose_errors_are_their_own_are_missed():
    """Twelve GPUs, each off by its own tenths, on which all publications agree."""
    error = np.random.default_rng(5).normal(0, 0.2, 12)
    rows = [
        residual(4 * gpu + n, error[gpu] + n / 1e3, f"s{gpu} {n}", gpu=f"g{gpu}")
        for gpu in range(12)
        for n in range(4)
    ]
    found = coverage(table_of(rows)).inside
    assert found["gpu"] < found["publication"]


@pytest.fixture(scope="module")
def published():
    return coverage(published_residuals())


def test_the_published_intervals_hold_75_to_85_percent_of_strangers(published):
    assert set(published.inside) == set(LEFT_OUT)
    shares = dict(published.inside)
    # Whoever draws a test looks for what is not in those before.
    assert 0.7 <= shares.pop("next_test") <= 0.85
    assert all(0.75 <= held <= 0.85 for held in shares.values())
    assert published.publications > 100


def test_the_published_intervals_lean_to_neither_side(published):
    assert published.faster == pytest.approx(0.1, abs=0.02)
    assert published.slower == pytest.approx(0.1, abs=0.02)


def test_the_published_intervals_are_no_wider_than_the_level_asks(published):
    known = published_residuals()
    assert coverage(known, 0.75).inside["publication"] < 0.8
    assert published.width_in_view < published.width < 1.2


def test_the_shipped_table_says_how_often_its_intervals_held(published):
    stored = stored_coverage()
    stored.pop("order")
    assert stored == pytest.approx(published.to_dict(), abs=1e-4)


def test_software_and_fabrics_that_nobody_ran_have_wider_bars():
    known = published_residuals()
    bars = [
        log_interval(known, replace(FEATURES, **changes))
        for changes in (
            {},
            {"framework": "undeclared"},
            {"framework": "undeclared", "fabric": "carrier pigeons 1"},
        )
    ]
    widths = [high - low for low, high in bars]
    assert widths == sorted(set(widths))


def test_the_more_like_runs_agree_the_narrower_the_bar():
    known, more = ([residual(n, n / 100, f"s{n}") for n in range(-k, k + 1)] for k in (3, 12))
    apart = [residual(50 + n, n / 10, f"t{n}", framework="other") for n in range(-6, 7)]
    few, many = (
        log_interval(table_of([replace(row, log_residual=0.0) for row in near] + apart), FEATURES)
        for near in (known, more)
    )
    assert many[1] - many[0] < few[1] - few[0]
