"""What is learned from runs of one machine, and when it is not used."""

import numpy as np
import pytest

from tests.simulators.laboratory.calibration.runs import cluster_jobs, measured, node_jobs
from trainscout.simulators.laboratory.calibration.runs import equal_jobs, with_predictions
from trainscout.simulators.laboratory.calibration.support import left_out, relative, supported
from trainscout.simulators.predictor.uncertainty.calibration import columns_of


def left_out_of(runs):
    found = with_predictions(runs)
    errors = np.array([run.log_residual for run in found])
    return errors, *left_out(columns_of(found), errors, equal_jobs(runs))


def test_a_slower_machine_is_found():
    factors = dict.fromkeys(("compute_time", "memory_time", "node_time", "host_time"), 1.2)
    errors, expected, applied = left_out_of(measured(node_jobs(), **factors))
    assert errors == pytest.approx(np.log(1.2), abs=0.01)
    assert supported(errors, expected)
    assert np.abs(relative(errors, applied)).max() < 0.03


def test_a_slower_network_is_told_from_slower_kernels():
    errors, expected, _ = left_out_of(measured(cluster_jobs(), network_time=1.5))
    # What communicates little is hardly slower.
    assert errors.max() > 4 * errors.min()
    assert supported(errors, expected)


def test_noise_alone_is_not_used():
    errors, expected, applied = left_out_of(measured(node_jobs(), noise=0.05))
    assert abs(np.mean(errors)) < 0.04
    assert not supported(errors, expected)
    assert np.abs(applied).mean() < np.abs(expected).mean()


def test_a_run_that_is_there_twice_is_left_out_as_one():
    runs = measured(node_jobs()[:1], compute_time=1.3) * 2
    errors, expected, applied = left_out_of(runs)
    assert np.concatenate((expected, applied)) == pytest.approx(np.zeros(4))
    assert not supported(errors, expected)


def test_as_much_is_used_as_predicts_runs_left_out_best():
    expected = np.array([[0.2, 0.2, 0.2], [0.2, 0.2, 0.2], [-0.1, -0.1, -0.1]])
    errors = np.array([[0.2, 0.2, 0.2], [0.1, 0.1, 0.1], [0.1, 0.1, 0.1]])
    assert supported(errors, expected) == pytest.approx([1, 0.5, 0])


def test_a_run_that_went_wrong_does_not_decide_how_much():
    errors = np.array([0.1] * 6 + [-1.0])
    # By squares it would: nothing would be used.
    assert supported(errors, np.full(7, 0.1)) >= 0.7
