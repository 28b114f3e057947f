import operator

import numpy as np
import pytest

from tests.simulators.predictor.uncertainty.rows import residual, table_of
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.uncertainty.features import sizes_of
from trainscout.simulators.predictor.uncertainty.table import (
    SWITCHES,
    ResidualTable,
    Tuning,
    doublings_of,
    published_residuals,
    read_table,
    table_text,
)


def rows():
    return [
        residual(1, 0.1, recipe=Recipe(tp=4, recompute="full", sp=True)),
        residual(2, -0.1, "two", gpu="a100_80", architecture="ampere", moe=True, bits=8),
        residual(3, 0.0, "two", recipe=Recipe(zero_stage=3, overlap_grad_reduce=True)),
    ]


def test_a_table_comes_back_as_it_was_written():
    tuning = Tuning(1.25, host_error=0.3, kernel_error=0.5, new_gpu=0.2)
    again = read_table(table_text(rows(), tuning, {"made_by": "a test"}))
    assert again.tuning == tuning
    # Ascending by residual: the second, the third, the first.
    order = [rows()[place] for place in (1, 2, 0)]
    assert again.residuals.tolist() == [row.log_residual for row in order]
    assert again.host_shares.tolist() == [row.features.host_share for row in order]
    assert again.sizes.T.tolist() == [list(sizes_of(row.features)) for row in order]
    assert again.doublings.T.tolist() == [list(doublings_of(row.recipe)) for row in order]
    assert again.sources.tolist() == [1, 1, 0]
    assert len(set(again.sweeps.tolist())) == 2
    switches = [[getattr(row.recipe, name) for name in SWITCHES] for row in order]
    for place, row in enumerate(order):
        assert again.codes(row.features).ravel().tolist() == again.kinds[:, place].tolist()
        alike = [[*map(operator.eq, each, switches[place])] for each in switches]
        assert np.equal(again.switches.T, again.switches[:, place]).tolist() == alike


def test_the_header_says_where_the_table_is_from():
    text = table_text(rows(), Tuning(), {"made_by": "a test"})
    assert text.startswith("# made_by: a test\n")


def test_residuals_ascend():
    assert table_of(rows(), Tuning()).residuals.tolist() == [-0.1, 0.0, 0.1]


def test_what_was_never_seen_is_like_nothing():
    codes = table_of(rows(), Tuning()).codes(residual(9, 0.0, gpu="tomorrow").features)
    assert codes[0] == -1
    assert (codes[1:] >= 0).all()


def test_an_empty_table_is_refused():
    with pytest.raises(ValueError, match="needs rows"):
        ResidualTable([], Tuning())


def test_the_published_table_is_whole():
    table = published_residuals()
    assert len(table.residuals) > 900
    assert np.isfinite(table.residuals).all()
    assert len(table.source_names) > 20
