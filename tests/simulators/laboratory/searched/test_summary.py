import pytest

from tests.simulators.laboratory.searched.samples import made_up
from trainscout.simulators.laboratory.published.published import PUBLISHED_RUNS
from trainscout.simulators.laboratory.published.reading.rows import read_rows
from trainscout.simulators.laboratory.searched import report


@pytest.mark.parametrize(
    ("fields", "verdict", "place"),
    [
        ({}, "as fast", "1"),
        ({"best_s": 1.02}, "as fast", "1"),
        ({"best_s": 1.04}, "lost: prediction", "1"),
        ({"best_s": 1.04, "rank": None}, "lost: prediction", "behind"),
        ({"best_s": 1.04, "inside": False}, "lost: space", "absent"),
        ({"best_s": 1.04, "fits": False}, "lost: memory", "cut"),
        ({"best_s": 0.9, "fits": False}, "as fast", "cut"),
        ({"best_s": None}, "no answer", "1"),
        ({"numerics": "16-bit gradients"}, "as fast with 16-bit gradients", "1"),
        ({"best_s": 1.1, "numerics": "8-bit logits"}, "lost: prediction", "1"),
    ],
)
def test_what_an_answer_is_lost_by(fields, verdict, place):
    one = made_up(**fields)
    assert one.verdict == verdict
    assert report.rank(one) == place


def met(*answers):
    return [target.met for target in report.targets(answers)]


def test_targets_are_met_up_to_their_shares():
    nineteen = [made_up()] * 19
    assert met(*nineteen, made_up(inside=False)) == [True, True, True, True]
    assert met(*nineteen, made_up(fits=False)) == [True, False, True, True]
    assert met(*nineteen, made_up(best_s=1.05)) == [True, True, True, True]
    assert met(*nineteen, made_up(best_s=1.09)) == [True, True, True, False]
    assert met(*nineteen[1:], *[made_up(best_s=1.05, inside=False)] * 2) == [
        False,
        True,
        False,
        True,
    ]


def test_no_answer_is_the_worst_loss():
    answers = [made_up(), made_up(name="none", best_s=None), made_up(name="far", best_s=2.0)]
    assert [one.name for one in report.most_lost_first(answers)][:2] == ["none", "far"]
    assert met(*answers)[2:] == [False, False]


def test_the_page_shows_what_was_asked_and_lost():
    now = made_up(best_s=0.9)
    lost = made_up(row="other", model="Lost|model", best_s=1.2, inside=False, why="vpp=7")
    text = report.questions_page([now, lost], 3)
    assert "| 1 | -10.0% |" in text
    assert "Lost\\|model" in text
    assert "lost: space" in text
    assert "vpp=7" in text
    assert "2 of the 3 questions" in text


def test_the_page_tells_both_answers_of_what_was_asked_again():
    tight = {"tight_s": 0.99, "tight_chance": 0.6}
    fewer = "16-bit gradients and 8-bit attention"
    again = made_up(row="again", **tight, numerics=fewer, best_s=0.99, declared_s=1.25)
    none = made_up(row="none", **tight, numerics="8-bit logits", best_s=1.2, declared_s=None)
    text = report.questions_page([made_up(), again, none], 3)
    assert "2 of them count with gradients in 16 bits" in text
    assert "all 2 are slower than these by more than 3%, with them 1." in text
    assert f"asked with {fewer} (without: +25.0%)" in text
    assert "asked with 8-bit logits (without: none fits)" in text
    assert text.count("our fastest that fits with 60% is -1.0%") == 1
    assert "count with gradients" not in report.questions_page([made_up()], 1)


def test_what_is_known_of_a_lost_row_is_told():
    lost = made_up(row="moezoo_qwen235_gb200_128k", best_s=1.2)
    assert "only TFLOPS are printed" in report.questions_page([lost], 1)


def test_notes_are_of_published_rows():
    rows = {row.id for row in read_rows(PUBLISHED_RUNS)}
    assert set(report._notes()) <= rows
