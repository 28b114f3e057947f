"""Runs that say most about which recipe is best."""

import numpy as np
import pytest

from trainscout.simulators.laboratory.calibration.suggest_command import suggest


def test_nothing_is_to_be_gained_where_all_err_alike():
    expected = np.log([1.0, 1.1, 1.2])
    now, _ = suggest(expected, np.full((3, 3), 0.01), 1)
    assert now == pytest.approx(0, abs=1e-6)


def test_the_uncertain_rival_is_measured_and_the_hopeless_is_not():
    expected = np.log([1.0, 1.01, 2.0])
    covariance = np.diag([1e-6, 0.01, 0.01])
    now, (first, second) = suggest(expected, covariance, 2)
    assert first.row == 1
    assert now > 0.03 > 0.002 > first.regret
    assert second.regret == pytest.approx(first.regret, abs=1e-3)


def test_regret_is_that_of_two_normals():
    """Of two equal candidates with independent errors s, the best is s/sqrt(pi) below either."""
    now, _ = suggest(np.zeros(2), 0.01 * np.eye(2), 1)
    assert now == pytest.approx(0.1 / np.sqrt(np.pi), rel=0.15)


def test_the_same_is_suggested_every_time():
    covariance = 0.01 * np.eye(5)
    assert suggest(np.zeros(5), covariance, 3) == suggest(np.zeros(5), covariance, 3)


def test_what_a_rival_has_of_its_own_is_told_by_itself_and_not_by_its_twin():
    """Row 2 shares the rival's error, and has ten times as much of its own."""
    covariance = np.array([[1e-6, 0, 0], [0, 0.02, 0.01], [0, 0.01, 0.11]])
    _, (first,) = suggest(np.log([1.0, 1.01, 2.0]), covariance, 1)
    assert first.row == 1
