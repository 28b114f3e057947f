import math

import numpy as np
import pytest

from tests.simulators.predictor.uncertainty.rows import residual, table_of
from trainscout.simulators.laboratory.published.published import stored_coverage
from trainscout.simulators.laboratory.uncertainty.order import order
from trainscout.simulators.predictor.uncertainty.table import published_residuals


def drawn(seed, error, lead, publications=200, test=lambda source: source % 5):
    """Pairs whose predicted difference ``lead`` is off by ``error``, by publication."""
    rng = np.random.default_rng(seed)
    rows = []
    for source in range(publications):
        off = rng.normal(0, error(source) / math.sqrt(2), 2)
        ahead = lead * rng.uniform(0, 2)
        for side, tflops in enumerate((400.0 * math.exp(ahead), 400.0)):
            shares = {"compute": 1 - 0.1 * side, "bubble": 0.1 * side}
            own = {"shares": shares, "tflops": tflops, "blind_test": test(source), "layout": side}
            rows.append(residual(len(rows), off[side], f"s{source}", **own))
    return table_of(rows)


def test_probabilities_hold_where_errors_are_alike():
    found = order(drawn(0, lambda _: 0.1, 0.1))
    assert (found.pairs, found.publications) == (160, 160)
    assert found.off == pytest.approx(0.2, abs=0.05)
    assert found.right > 0.9
    for each in found.likely:
        assert each.came == pytest.approx(each.said, abs=3 * 0.5 / math.sqrt(each.pairs))


def test_strangers_that_err_more_are_found_out():
    """One in five is of a test, and errs far more than what was in view."""
    first = {"error": lambda source: 0.01 if source % 5 else 0.3}
    found = order(drawn(0, lead=0.1, test=lambda source: int(source % 5 == 0), **first))
    assert found.off > 0.5
    assert found.right < 0.9
    assert found.apart["10%"] > found.apart["20%"] > 0


def test_pairs_in_view_are_not_counted():
    table = drawn(1, lambda _: 0.1, 0.1, 40)
    blind = table.blind_tests > 0
    assert order(table).pairs == blind.sum() / 2


def test_the_shipped_table_says_how_often_its_order_held():
    found = order(published_residuals())
    assert stored_coverage()["order"] == found.to_dict()
    # What the documentation says of leads that are no ties.
    assert found.right >= 0.9
