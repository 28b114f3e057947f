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
from trainscout.simulators.predictor.uncertainty.interval import error_bar, log_interval
from trainscout.simulators.predictor.uncertainty.table import (
    published_residuals,
    quantiles,
    source_balanced,
)

values = st.lists(st.floats(-1, 1), min_size=2, max_size=30)
levels = st.floats(0.05, 0.99)


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
    low, high = log_interval(table_of(rows), FEATURES, min(one, other))
    wider_low, wider_high = log_interval(table_of(rows), FEATURES, max(one, other))
    assert wider_low <= low + 1e-12
    assert high <= wider_high + 1e-12


@given(values, st.floats(-0.5, 0.5))
def test_a_common_error_moves_the_interval(found, shift):
    """Predictions that are all off by one factor are corrected by it."""
    rows = [residual(number, value) for number, value in enumerate(found)]
    moved = [replace(row, log_residual=row.log_residual + shift) for row in rows]
    low, high = log_interval(table_of(rows), FEATURES)
    assert log_interval(table_of(moved), FEATURES) == pytest.approx((low + shift, high + shift))


@given(values)
def test_the_order_of_rows_does_not_matter(found):
    rows = [residual(number, value, f"s{number % 3}") for number, value in enumerate(found)]
    there, back = table_of(rows), table_of(rows[::-1])
    assert log_interval(there, FEATURES) == pytest.approx(log_interval(back, FEATURES))


def test_near_runs_decide():
    near = [residual(n, 0.01 * n, f"near {n}") for n in range(-5, 6)]
    far = [residual(20 + n, 0.5 + 0.1 * n, f"far {n}", gpu="v100_32") for n in range(3)]
    low, high = log_interval(table_of(near + far), FEATURES)
    other = replace(FEATURES, gpu="v100_32")
    far_low, far_high = log_interval(table_of(near + far), other)
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
    low, high = log_interval(table_of(rows), FEATURES)
    excess = 0.1
    loan = replace(FEATURES, kernel_error=math.hypot(FEATURES.kernel_error, excess))
    wide_low, wide_high = log_interval(table_of(rows), loan)
    # 80 % of a normal error lie within 1.2816 standard deviations, half within 0.6745.
    reach = 1.2816 / 0.6745 * excess
    assert (wide_low, wide_high) == pytest.approx(
        (-math.hypot(low, reach), math.hypot(high, reach)), 1e-3
    )
    better = replace(FEATURES, kernel_error=0.01)
    assert log_interval(table_of(rows), better) == (low, high)


def test_what_a_network_leaves_unknown_reaches_farther_to_its_slower_side():
    rows = [residual(n, n / 50, f"s{n}", fabric_error=0.1) for n in range(-25, 26)]
    low, high = log_interval(table_of(rows), FEATURES)
    unsure = replace(FEATURES, fabric_error=0.2, slow_fabric_error=0.4)
    reach = 1.2816 / 0.6745
    assert log_interval(table_of(rows), unsure) == pytest.approx(
        (-math.hypot(low, reach * 0.2), math.hypot(high, reach * 0.4)), 1e-3
    )


@pytest.mark.parametrize("published", ["h100", "a100_80", "b200"])
def test_a_gpu_that_nobody_published_is_newer_than_the_most_published(published):
    known, kin = published_residuals(), on(published)
    strange = replace(kin, gpu="tomorrow")
    novelty, far = (source_balanced(known.near(each), known.sources)[1] for each in (kin, strange))
    assert far > novelty


def test_a_gpu_that_nobody_published_is_less_sure_than_one_that_is():
    # Not than an H100 or A100: their strangers err as much as those of all others.
    known, kin = published_residuals(), on("b200")
    low, high = log_interval(known, kin)
    far_low, far_high = log_interval(known, replace(kin, gpu="tomorrow"))
    assert far_high - far_low > high - low


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


def test_runs_of_another_vendor_tell_less():
    ours = [residual(n, n / 100, f"s{n}") for n in range(-10, 11)]
    theirs = [residual(50 + n, 0.4 + n / 10, f"t{n}", vendor="other") for n in range(-2, 3)]
    low, high = log_interval(table_of(ours + theirs), FEATURES)
    their_low, their_high = log_interval(
        table_of(ours + theirs), replace(FEATURES, vendor="other")
    )
    assert their_high - their_low > high - low
    assert their_high > high


def test_waits_for_the_host_widen_the_slower_side_by_what_neighbours_did_not_wait():
    rows = [residual(n, n / 50, f"s{n}", host_share=0.3) for n in range(-25, 26)]
    alike = log_interval(table_of(rows), replace(FEATURES, host_share=0.3))
    less = log_interval(table_of(rows), replace(FEATURES, host_share=0.2))
    assert less == pytest.approx(alike, 0.02)
    # 0.4, which 0.3 lacks of 0.5 in squares, one and a half times.
    reach = 1.2816 / 0.6745 * 0.4 * 1.5
    low, high = log_interval(table_of(rows), replace(FEATURES, host_share=0.5))
    assert low == pytest.approx(alike[0], 0.05)
    assert high == pytest.approx(math.hypot(low, reach), 1e-3)


def test_the_bar_of_a_prediction_is_in_seconds_and_repeatable():
    question = make_job(tp=2)
    prediction = ReplaySimulator().simulate(question)
    low, high = error_bar(question, prediction.step_time_s, prediction.breakdown_s)
    assert 0 < low < high < math.inf
    again = ReplaySimulator().simulate(question)
    assert error_bar(question, again.step_time_s, again.breakdown_s) == (low, high)
