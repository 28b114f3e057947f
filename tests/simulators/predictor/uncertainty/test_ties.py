import math

import numpy as np
import pytest

from tests.simulators.predictor.uncertainty.rows import FEATURES, residual, table_of
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.uncertainty.ties import layout_pairs, layout_steps, tie_share


@pytest.mark.parametrize(
    ("one", "other", "steps"),
    [
        (Recipe(tp=2), Recipe(tp=2), 0),
        (Recipe(tp=8), Recipe(tp=2), 2),
        (Recipe(tp=8, pp=1), Recipe(tp=4, pp=2), 2),
        (Recipe(sp=True, tp=2), Recipe(tp=2), 1),
        (Recipe(recompute="full"), Recipe(micro_batch=4), 3),
    ],
)
def test_layout_steps(one, other, steps):
    assert layout_steps(one, other) == pytest.approx(steps)
    assert layout_steps(other, one) == pytest.approx(steps)


def test_pairs_are_of_one_sweep_and_of_different_layouts():
    rows = [
        residual(1, 0.0, sweep="a", recipe=Recipe(tp=1)),
        residual(2, 0.3, sweep="a", recipe=Recipe(tp=4)),
        residual(3, 0.1, sweep="a", recipe=Recipe(tp=4)),
        residual(4, 0.9, sweep="b", recipe=Recipe(tp=2)),
        residual(5, 0.9, source="two", sweep="a", recipe=Recipe(tp=2)),
    ]
    pairs = layout_pairs(table_of(rows))
    # Two doublings apart: their difference over the square root of two.
    assert pairs.per_step == pytest.approx(np.array([0.1, 0.3]) / math.sqrt(2))


def test_farther_layouts_are_harder_to_tell_apart():
    near = tie_share(FEATURES, Recipe(tp=2), Recipe(tp=4))
    far = tie_share(FEATURES, Recipe(tp=1), Recipe(tp=8, pp=2))
    assert 0 < near < far
    assert tie_share(FEATURES, Recipe(tp=2), Recipe(tp=2)) == 0


def test_a_published_difference_is_missed_as_independent_steps_would():
    one = math.log1p(tie_share(FEATURES, Recipe(), Recipe(tp=2)))
    four = math.log1p(tie_share(FEATURES, Recipe(), Recipe(tp=16)))
    assert four == pytest.approx(2 * one)
