import math

import numpy as np
import pytest

from tests.simulators.laboratory.calibration.runs import (
    cluster_jobs,
    launch_jobs,
    measured,
    node_jobs,
)
from trainscout.simulators.laboratory.calibration.fit import fit_corrections
from trainscout.simulators.laboratory.calibration.identify import identify
from trainscout.simulators.laboratory.calibration.linear import (
    PRIOR_SPREAD,
    RUN_SPREAD,
    information,
    solve,
)
from trainscout.simulators.laboratory.calibration.model import MeasuredRun, StepTimes
from trainscout.simulators.predictor.uncertainty.calibration import CORRECTIONS


def fitted(runs):
    times = StepTimes(runs)
    return fit_corrections(times, identify(times, CORRECTIONS))


def test_one_correction_is_the_mean_shrunk_to_one():
    """Precision-weighted mean of n equal residuals and a prior at zero."""
    residuals = np.full(4, 0.1)
    found = solve(("compute_time",), np.ones((4, 1)), residuals, np.zeros(1), np.ones(4))
    runs, prior = 4 / RUN_SPREAD**2, PRIOR_SPREAD["compute_time"] ** -2
    assert found == pytest.approx([0.1 * runs / (runs + prior)])


def test_the_solution_does_not_depend_on_where_the_line_is_drawn():
    rng = np.random.default_rng(0)
    effects, residuals = rng.uniform(0, 1, (6, 2)), rng.normal(0, 0.1, 6)
    names, weights = CORRECTIONS[:2], np.ones(6)
    direct = solve(names, effects, residuals, np.zeros(2), weights)
    elsewhere = np.array([0.3, -0.2])
    shifted = solve(names, effects, residuals - effects @ elsewhere, elsewhere, weights)
    assert shifted == pytest.approx(direct)


def test_weightless_runs_leave_the_prior():
    names = CORRECTIONS[:1]
    assert information(names, np.ones((3, 1)), np.zeros(3)) == pytest.approx(
        PRIOR_SPREAD["compute_time"] ** -2
    )


def test_nothing_is_corrected_where_nothing_is_off():
    fit = fitted(measured(node_jobs()))
    assert fit.corrections == pytest.approx([0, 0, 0], abs=1e-9)
    assert fit.after == pytest.approx(np.zeros(6), abs=1e-9)


def test_slower_kernels_are_found():
    fit = fitted(measured(node_jobs(), compute_time=1.15))
    assert fit.factors[0] == pytest.approx(1.15, rel=0.01)
    assert fit.factors[1:] == pytest.approx([1, 1])
    assert np.abs(fit.before).mean() > 0.1
    assert np.abs(fit.after).max() < 0.01


def test_a_slower_network_is_told_from_slower_kernels():
    fit = fitted(measured(cluster_jobs(), compute_time=0.95, network_time=1.5))
    assert fit.factors == pytest.approx([0.95, 1.5, 1.0], rel=0.05)


def test_a_slower_host_is_told_from_slower_kernels():
    jobs = [*node_jobs(), *launch_jobs()]
    fit = fitted(measured(jobs, compute_time=1.1, host_time=1.4))
    assert fit.factors == pytest.approx([1.1, 1.0, 1.4], rel=0.05)


def test_noise_shows_in_the_error_left_out():
    quiet = fitted(measured(node_jobs(), 0.01, compute_time=1.2))
    loud = fitted(measured(node_jobs(), 0.2, compute_time=1.2))
    assert np.sqrt(np.mean(loud.after**2)) > 3 * np.sqrt(np.mean(quiet.after**2))
    assert loud.spreads[0] > quiet.spreads[0] > 0


def test_one_run_gone_wrong_does_not_decide():
    runs = measured(node_jobs(), compute_time=1.1)
    wrong = [*runs[:-1], MeasuredRun("wrong", runs[-1].job, 3 * runs[-1].measured_s)]
    assert fitted(wrong).factors[0] == pytest.approx(1.1, rel=0.05)


def test_a_repeated_run_is_left_out_as_one():
    runs = measured(node_jobs())
    odd = MeasuredRun("odd", runs[0].job, runs[0].measured_s * 1.3)
    again = MeasuredRun("again", runs[0].job, runs[0].measured_s * 1.3)
    fit = fitted([odd, again, *runs[1:]])
    # Neither helps to predict the other: both are missed in full.
    assert fit.after[:2] == pytest.approx(math.log(1.3), abs=0.005)
