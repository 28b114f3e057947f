"""Queue predictors on histories whose continuation is known."""

import numpy as np
import pytest

from trainscout.simulators.predictor.network.hybrid.predictors import PREDICTORS

HISTORY = np.array([[8.0, 4.0, 2.0, 1.0], [5.0, 5.0, 5.0, 5.0], [0.0, 2.0, 0.0, 2.0]])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("last", [1.0, 5.0, 2.0]),
        ("mean", [3.75, 5.0, 1.0]),
        ("zero", [0.0, 0.0, 0.0]),
    ],
)
def test_simple_ones(name, expected):
    assert PREDICTORS[name](HISTORY).tolist() == expected


def test_the_autoregressive_one_goes_on_as_before():
    depths = PREDICTORS["autoregressive"](HISTORY)
    # A constant stays; what jumps about its mean of one jumps back.
    assert depths[1] == 5.0
    assert depths[2] == pytest.approx(0.0)
    assert (depths >= 0).all()


def test_frozen_leaves_queues_alone():
    assert PREDICTORS["frozen"] is None
