import numpy as np
import pytest

from tests.simulators.predictor.uncertainty.rows import residual, table_of
from trainscout.simulators.predictor.uncertainty.features import sizes_of
from trainscout.simulators.predictor.uncertainty.table import (
    ERRORS,
    PARTS,
    ResidualTable,
    published_residuals,
    read_table,
    table_text,
)


def rows():
    return [
        residual(1, 0.1, shares={"compute": 0.75, "bubble": 0.25}, tflops=512.5),
        residual(
            2, -0.1, "two", blind_test=0, gpu="a100_80", architecture="ampere", moe=True, bits=8
        ),
        residual(3, 0.0, "two", shares={"dp_communication": 1.0}),
    ]


def test_a_table_comes_back_as_it_was_written():
    again = read_table(table_text(rows(), {"made_by": "a test"}))
    # Ascending by residual: the second, the third, the first.
    order = [rows()[place] for place in (1, 2, 0)]
    assert again.residuals.tolist() == [row.log_residual for row in order]
    assert again.errors.T.tolist() == [
        [getattr(row.features, name) for name in ERRORS] for row in order
    ]
    assert again.blind_tests.tolist() == [0, 1, 1]
    assert again.sizes.T.tolist() == [list(sizes_of(row.features)) for row in order]
    assert again.shares.T.tolist() == [
        [row.shares.get(part, 0.0) for part in PARTS] for row in order
    ]
    assert again.tflops.tolist() == [row.tflops for row in order]
    assert again.sources.tolist() == [1, 1, 0]
    assert len(set(again.sweeps.tolist())) == 2
    for place, row in enumerate(order):
        assert again.codes(row.features).ravel().tolist() == again.kinds[:, place].tolist()


def test_the_header_says_where_the_table_is_from():
    text = table_text(rows(), {"made_by": "a test"})
    assert text.startswith("# made_by: a test\n")


def test_residuals_ascend():
    assert table_of(rows()).residuals.tolist() == [-0.1, 0.0, 0.1]


def test_what_was_never_seen_is_like_nothing():
    codes = table_of(rows()).codes(residual(9, 0.0, gpu="tomorrow").features)
    assert codes[0] == -1
    assert (codes[1:] >= 0).all()


def test_an_empty_table_is_refused():
    with pytest.raises(ValueError, match="needs rows"):
        ResidualTable([])


def test_the_published_table_is_whole():
    table = published_residuals()
    assert np.isfinite(table.residuals).all()
    assert (table.blind_tests == 0).sum() > 900
    for test in range(1, 11):
        assert len(set(table.sources[table.blind_tests == test])) >= 5
