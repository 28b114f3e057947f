import math

import numpy as np
import pytest

from tests.simulators.jobs import make_job
from tests.simulators.predictor.uncertainty.rows import FEATURES, residual, table_of
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.table import PARTS
from trainscout.simulators.predictor.uncertainty.ties import (
    layout_pairs,
    pair_weights,
    spent_otherwise,
    tie_share,
)

ALONE = {"compute": 1.0}
WITH_TP = {"compute": 3.0, "tp_communication": 1.0}
WITH_BUBBLE = {"compute": 6.0, "bubble": 2.0}


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        (WITH_TP, WITH_TP, 0.0),
        # How long a step is has no part in it.
        (WITH_TP, {part: 7 * s for part, s in WITH_TP.items()}, 0.0),
        (ALONE, WITH_TP, 0.5),
        (WITH_TP, WITH_BUBBLE, 0.5),
        ({"tp_communication": 1.0}, {"bubble": 1.0}, 2.0),
    ],
)
def test_what_is_spent_otherwise(one, other, share):
    assert spent_otherwise(one, other) == pytest.approx(share)
    assert spent_otherwise(other, one) == pytest.approx(share)


def sweep():
    half = {"compute": 0.75, "bubble": 0.25}
    return [
        residual(1, 0.0, sweep="a", layout=1),
        residual(2, 0.3, sweep="a", layout=2, shares=half),
        residual(3, 0.1, sweep="a", layout=2, shares=half),
        # Other software, no other layout.
        residual(6, 0.7, sweep="a", layout=2, shares={"compute": 0.7, "bubble": 0.3}),
        residual(4, 0.9, sweep="b", layout=2),
        residual(5, 0.9, source="two", sweep="a", layout=3, shares={"host": 1.0}),
    ]


def test_pairs_are_of_one_sweep_and_of_different_layouts():
    pairs = layout_pairs(table_of(sweep()))
    # What of a step is spent otherwise, and what is common to all pairs.
    assert pairs.spread**2 == pytest.approx([0.55, 0.55, 0.65])
    assert pairs.errors * pairs.spread == pytest.approx([0.1, 0.3, 0.7])


def test_pairs_with_a_run_left_out_weigh_nothing():
    table = table_of(sweep())
    place = [*table.residuals].index(0.3)
    near = np.where(np.arange(len(table.residuals)) == place, 0.0, 1.0)
    assert pair_weights(table, near) == pytest.approx([0.5, 0.0, 0.5])


def test_layouts_that_spend_more_otherwise_are_harder_to_tell_apart():
    same, near, far = (
        tie_share(FEATURES, WITH_TP, other)
        for other in (WITH_TP, {"compute": 3.2, "tp_communication": 1.0}, WITH_BUBBLE)
    )
    # Kernels of other shapes count where parts are as large.
    assert 0 < same < near < far


def test_a_published_difference_is_missed_as_independent_parts_would():
    """Errors grow as the square root of what is spent otherwise and a twentieth."""
    one = math.log1p(tie_share(FEATURES, ALONE, ALONE))
    two = math.log1p(tie_share(FEATURES, ALONE, {"compute": 0.925, "bubble": 0.075}))
    assert two == pytest.approx(2 * one)


def test_the_table_knows_all_parts_of_a_step():
    prediction = ReplaySimulator().simulate(make_job(tp=2, pp=2))
    assert {*prediction.breakdown_s} <= {*PARTS}
