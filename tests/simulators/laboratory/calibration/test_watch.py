"""What has moved, by which runs took longer."""

import numpy as np
import pytest

from trainscout.simulators.laboratory.calibration.watch_command import WHOLE, moved
from trainscout.simulators.predictor.uncertainty.factors import SHARES

NETWORK = SHARES.index("network_time")


def shares(network):
    found = np.zeros(len(SHARES))
    found[NETWORK] = network
    return found


def test_what_communicates_more_and_is_slower_has_a_slower_network():
    excess = np.array([0.0, 0.12, 0.24])
    found = moved(excess, np.full(3, 0.02), [shares(0), shares(0.2), shares(0.4)])
    assert found[0].name == "network_time"
    assert found[0].factor == pytest.approx(np.exp(0.6), rel=0.2)
    assert found[0].probability > 0.9


def test_what_is_slower_alike_is_slower_as_a_whole():
    found = moved(np.full(2, 0.15), np.full(2, 0.02), [shares(0.02), shares(0.4)])
    assert found[0].name == WHOLE
    assert found[0].factor == pytest.approx(np.exp(0.15), rel=0.02)


def test_probabilities_sum_to_one():
    found = moved(np.array([0.1]), np.array([0.02]), [shares(0.3)])
    assert sum(each.probability for each in found) == pytest.approx(1)
