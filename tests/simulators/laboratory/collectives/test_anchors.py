"""A few figures of a cluster's own correct a fit to others, between and beyond them."""

import pytest

from trainscout.simulators.laboratory.collectives import fit as anchors
from trainscout.simulators.laboratory.collectives.fit import KIB, MIB, anchored_errors
from trainscout.simulators.laboratory.collectives.least_squares import Row


def row(size, factor, nodes=2):
    """A row that a fit of one microsecond a KiB is off at by a factor."""
    predicted = size / KIB
    return Row("own", True, "infiniband", nodes, size, "node", {}, "net", {}, predicted / factor)


@pytest.fixture(autouse=True)
def one_microsecond_a_kib(monkeypatch):
    monkeypatch.setattr(anchors, "predict_us", lambda _, row: row.size_bytes / KIB)


SIZES = [KIB * 4**power for power in range(10)]


def test_a_fit_that_is_off_everywhere_alike_needs_one_figure():
    rows = [row(size, 1.5) for size in SIZES]
    errors = anchored_errors(None, rows, (256 * MIB,))
    assert len(errors) == len(rows) - 1
    assert max(errors.values()) == pytest.approx(0, abs=1e-12)


def test_one_that_is_off_by_size_needs_figures_at_both_ends():
    rows = [row(size, 1.5 - 0.05 * place) for place, size in enumerate(SIZES)]
    one = anchored_errors(None, rows, (SIZES[-1],))
    two = anchored_errors(None, rows, (SIZES[0], SIZES[-1]))
    assert max(one.values()) > 0.3
    assert max(two.values()) < 0.05


def test_nodes_and_what_joins_them_are_told_apart():
    rows = [row(size, 2.0, nodes=1) for size in SIZES] + [row(size, 0.5) for size in SIZES]
    errors = anchored_errors(None, rows, (MIB,))
    assert len(errors) == len(rows) - 2
    assert max(errors.values()) == pytest.approx(0, abs=1e-12)
