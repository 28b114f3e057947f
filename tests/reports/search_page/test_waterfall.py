from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples import prediction
from trainscout.reports.search_page.page_data import REST, waterfall

PARTS = st.dictionaries(
    st.sampled_from(["compute", "bubble", "tp_communication", "optimizer", "host"]),
    st.floats(0, 100),
    min_size=1,
)


def bars_between(*both):
    return waterfall(*(replace(prediction(1.0, 1.0), breakdown_s=parts) for parts in both))


@given(PARTS, PARTS)
def test_bars_lead_from_one_step_to_the_other(best, rival):
    bars = bars_between(best, rival)
    expected = sum(rival.values()) - sum(best.values())
    assert sum(bar["seconds"] for bar in bars) == pytest.approx(expected, abs=1e-9)


@given(PARTS, PARTS)
def test_bars_are_named_once_and_largest_first(best, rival):
    bars = [bar for bar in bars_between(best, rival) if bar["part"] != REST]
    sizes = [abs(bar["seconds"]) for bar in bars]
    assert sizes == sorted(sizes, reverse=True)
    assert len({bar["part"] for bar in bars}) == len(bars)


def test_small_differences_are_one_bar():
    best = {"compute": 10.0, "bubble": 1.0, "host": 0.1, "optimizer": 0.2}
    rival = {"compute": 10.0, "bubble": 3.0, "host": 0.105, "optimizer": 0.199}
    first, rest = bars_between(best, rival)
    assert (first["part"], first["label"], first["seconds"]) == ("bubble", "bubble", 2.0)
    assert (rest["part"], rest["seconds"]) == (REST, pytest.approx(0.004))


def test_what_only_one_of_them_does_counts():
    assert bars_between({"compute": 1.0}, {"compute": 1.0, "pp_communication": 0.5})[0] == {
        "part": "pp_communication",
        "label": "PP communication",
        "seconds": 0.5,
    }
