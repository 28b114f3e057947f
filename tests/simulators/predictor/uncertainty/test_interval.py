import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.jobs import make_job
from tests.simulators.predictor.uncertainty.rows import FEATURES, residual, table_of
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.kernels.uncertainty import kernel_uncertainty
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty import error_bar
from trainscout.simulators.predictor.uncertainty.interval import UNSEEN, log_interval
from trainscout.simulators.predictor.uncertainty.table import (
    Tuning,
    published_residuals,
    quantiles,
    source_balanced,
)

values = st.lists(st.floats(-1, 1), min_size=2, max_size=30)
levels = st.floats(0.05, 0.99)
FASTER, SLOWER = UNSEEN["network"]


def table(rows, tail_factor=1.0):
    return table_of(rows, Tuning(tail_factor))


def test_equal_weights_give_the_usual_quantiles():
    ascending = np.linspace(0, 1, 101)
    found = quantiles(ascending, np.full(101, 1 / 101), [0.1, 0.5, 0.9])
    assert found == pytest.approx([0.1, 0.5, 0.9], abs=0.005)


def test_weights_count_as_repetitions():
    found = quantiles(np.array([0.0, 1.0]), np.array([0.25, 0.75]), [0.125, 0.625])
    assert found == [0.0, 1.0]


def test_a_source_of_many_runs_weighs_no_more_than_one_of_few():
    similarity = np.ones(500 + 5)
    sources = np.array([0] * 500 + [1] * 5)
    weights, _ = source_balanced(similarity, sources)
    # W / (1 + W) of both, plus an equal share of what any source weighs.
    many, few = weights[:500].sum(), weights[500:].sum()
    assert many / few == pytest.approx((500 / 501 + 1) / (5 / 6 + 1))


def test_without_anything_near_every_source_counts_the_same():
    sources = np.array([0] * 90 + [1] * 10)
    weights, novelty = source_balanced(np.full(100, 1e-300), sources)
    assert novelty == pytest.approx(1.0)
    assert weights[:90].sum() == pytest.approx(0.5)


def test_runs_left_out_weigh_nothing():
    similarity = np.array([0.0, 0.0, 1.0, 0.5])
    weights, _ = source_balanced(similarity, np.array([0, 0, 1, 2]))
    assert weights[:2].sum() == 0
    assert weights.sum() == pytest.approx(1.0)


def test_novelty_falls_with_every_source_that_is_near():
    one = source_balanced(np.array([1.0, 1e-300]), np.array([0, 1]))[1]
    both = source_balanced(np.array([1.0, 1.0]), np.array([0, 1]))[1]
    assert both < one < 1


@given(values, levels, levels)
def test_a_higher_level_holds_a_lower_one(found, one, other):
    rows = [residual(number, value) for number, value in enumerate(found)]
    low, high = log_interval(table(rows), FEATURES, min(one, other))
    wider_low, wider_high = log_interval(table(rows), FEATURES, max(one, other))
    assert wider_low <= low + 1e-12
    assert high <= wider_high + 1e-12


@given(values, st.floats(-0.5, 0.5))
def test_a_common_error_moves_the_interval(found, shift):
    """Predictions that are all off by one factor are corrected by it."""
    rows = [residual(number, value) for number, value in enumerate(found)]
    moved = [replace(row, log_residual=row.log_residual + shift) for row in rows]
    low, high = log_interval(table(rows), FEATURES)
    assert log_interval(table(moved), FEATURES) == pytest.approx((low + shift, high + shift))


@given(values)
def test_the_order_of_rows_does_not_matter(found):
    rows = [residual(number, value, f"s{number % 3}") for number, value in enumerate(found)]
    there, back = table(rows), table(rows[::-1])
    assert log_interval(there, FEATURES) == pytest.approx(log_interval(back, FEATURES))


def test_near_runs_decide():
    near = [residual(n, 0.01 * n, f"near {n}") for n in range(-5, 6)]
    far = [residual(20 + n, 0.5 + 0.1 * n, f"far {n}", gpu="v100_32") for n in range(3)]
    low, high = log_interval(table(near + far), FEATURES)
    other = replace(FEATURES, gpu="v100_32")
    far_low, far_high = log_interval(table(near + far), other)
    assert high - low < far_high - far_low
    assert far_high > high


def test_a_stranger_gets_a_wider_bar_than_a_familiar():
    known = published_residuals()
    stranger = replace(
        FEATURES, gpu="tomorrow", architecture="next", num_gpus=100_000, layer_s=1e-5
    )
    low, high = log_interval(known, FEATURES)
    far_low, far_high = log_interval(known, stranger)
    assert far_high - far_low > 1.5 * (high - low)


def test_worse_known_kernels_widen_the_bar_by_their_excess():
    rows = [residual(n, n / 50, f"s{n}") for n in range(-25, 26)]
    low, high = log_interval(table(rows), FEATURES)
    excess = 0.1
    loan = replace(FEATURES, kernel_error=math.hypot(FEATURES.kernel_error, excess))
    wide_low, wide_high = log_interval(table(rows), loan)
    # 80 % of a normal error lie within 1.2816 standard deviations, half within 0.6745.
    reach = 1.2816 / 0.6745 * excess
    assert (wide_low, wide_high) == pytest.approx(
        (-math.hypot(low, reach), math.hypot(high, reach)), 1e-3
    )
    # As much of it as steps were found to have.
    half = log_interval(table_of(rows, Tuning(kernel_error=0.5)), loan)
    assert half == pytest.approx((-math.hypot(low, reach / 2), math.hypot(high, reach / 2)), 1e-3)
    better = replace(FEATURES, kernel_error=0.01)
    assert log_interval(table(rows), better) == (low, high)


def test_a_gpu_without_runs_is_at_least_as_uncertain_as_tuned():
    rows = [residual(n, n / 1000, f"s{n}") for n in range(-25, 26)]
    stranger = replace(FEATURES, gpu="tomorrow")
    found = log_interval(table_of(rows, Tuning(new_gpu=0.2)), stranger)
    assert found == pytest.approx((-0.2 * FASTER, 0.2 * SLOWER))
    # Where the runs are wider off than that, nothing is cut.
    wide = [replace(row, log_residual=20 * row.log_residual) for row in rows]
    assert log_interval(table_of(wide, Tuning(new_gpu=0.2)), stranger) == log_interval(
        table(wide), stranger
    )


def test_every_publication_of_a_gpu_makes_it_less_uncertain():
    others = [residual(n, n / 1000, f"s{n}", gpu="other") for n in range(-25, 26)]
    for known in range(4):
        rows = others + [residual(100 + n, 0.0, f"here {n}") for n in range(known)]
        tuned = table_of([*rows, *rows], Tuning(new_gpu=0.2))
        assert tuned.publications("h100") == known
        least = 0.2 / math.sqrt(1 + known)
        reach = (-FASTER * least, SLOWER * least)
        assert log_interval(tuned, FEATURES) == pytest.approx(reach)


@pytest.mark.parametrize(
    ("place", "joined"),
    [
        ({"num_gpus": 1, "fabric": "node"}, "alone"),
        ({"num_gpus": 8, "fabric": "node"}, "node"),
        ({"fabric": "measured 400"}, "measured"),
        ({"fabric": "roce 100"}, "network"),
    ],
)
def test_strangers_lean_to_the_slow_side_the_more_the_farther_their_gpus(place, joined):
    rows = [residual(n, n / 1000, f"s{n}") for n in range(-25, 26)]
    tuned = table_of(rows, Tuning(new_gpu=0.2))
    low, high = log_interval(tuned, replace(FEATURES, gpu="tomorrow", **place))
    faster, slower = UNSEEN[joined]
    assert high / -low == pytest.approx(slower / faster)


@pytest.mark.parametrize(
    ("gpu", "published", "errs_more"),
    [
        ("a40", "a100_80", False),
        ("rtx3090", "a100_80", True),
        ("h20", "h100", True),
        ("l40s", "a100_80", True),
    ],
)
def test_gpus_that_nobody_published_are_no_surer_than_their_kin(gpu, published, errs_more):
    """And less sure where prices of their products err more than their kin's."""
    known = published_residuals()
    assert known.publications(gpu) == 0
    low, high = log_interval(known, on(published))
    far_low, far_high = log_interval(known, on(gpu))
    assert far_low <= low
    assert far_high >= high
    assert (far_high - far_low > high - low) is errs_more


def on(name):
    """``FEATURES`` on a shipped GPU."""
    gpu = load_catalogue().gpus[name]
    errors, architecture = kernel_uncertainty(gpu), gpu.architecture
    return replace(
        FEATURES,
        gpu=name,
        architecture=architecture.name,
        vendor=architecture.vendor,
        kernel_error=errors.get("gemm_fp16", errors["gemm"]),
    )


def test_amds_gpus_reach_farther_to_the_slow_side():
    known = published_residuals()
    low, high = log_interval(known, FEATURES)
    assert log_interval(known, replace(FEATURES, vendor="amd"))[0] == low
    assert log_interval(known, replace(FEATURES, vendor="amd"))[1] > high


def test_waits_for_the_host_widen_the_bar_by_what_neighbours_did_not_wait():
    rows = [residual(n, n / 50, f"s{n}", host_share=0.3) for n in range(-25, 26)]
    tuned = table_of(rows, Tuning(host_error=0.5))
    beside = replace(FEATURES, host_share=0.3)
    assert log_interval(tuned, beside) == log_interval(table(rows), beside)
    beyond = replace(FEATURES, host_share=0.5)
    low, high = log_interval(table(rows), beyond)
    wide_low, wide_high = log_interval(tuned, beyond)
    # Half of 0.4, which 0.3 lacks of 0.5 in squares.
    reach = 1.2816 / 0.6745 * 0.5 * 0.4
    assert (wide_low, wide_high) == pytest.approx(
        (-math.hypot(low, reach), math.hypot(high, reach)), 1e-3
    )


def test_a_tail_factor_above_one_narrows():
    rows = [residual(n, n / 50, f"s{n}") for n in range(50)]
    low, high = log_interval(table(rows), FEATURES)
    cut_low, cut_high = log_interval(table(rows, tail_factor=2.0), FEATURES)
    assert low < cut_low < cut_high < high


def test_the_bar_of_a_prediction_is_in_seconds_and_repeatable():
    question = make_job(tp=2)
    prediction = ReplaySimulator().simulate(question)
    low, high = error_bar(question, prediction.step_time_s, prediction.breakdown_s)
    assert 0 < low < high < math.inf
    again = ReplaySimulator().simulate(question)
    assert error_bar(question, again.step_time_s, again.breakdown_s) == (low, high)
