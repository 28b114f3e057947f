import math

import pytest

from trainscout.simulators.laboratory.fastest import (
    effects,
    held_out,
    selection_of,
)


def runs(publication, *layouts, sweep="one"):
    """Layouts of one sweep, each predicted and measured seconds."""
    return [(publication, sweep, n, *seconds) for n, seconds in enumerate(layouts)]


def test_the_effect_is_of_the_predicted_best_against_all():
    (effect,) = effects(runs("a", (1.0, 1.3), (2.0, 2.0), (3.0, 3.0)))["a"]
    assert effect == pytest.approx(math.log(1.3) * 2 / 3)


def test_sweeps_of_one_layout_and_repeats_say_nothing():
    again = [("a", "one", "same", 1.0, 1.1), ("a", "one", "same", 1.0, 1.2)]
    assert effects([*again, *runs("b", (1.0, 1.0))]) == {}
    repeated = [("a", "one", "other", 2.0, 2.0), *again]
    (effect,) = effects(repeated)["a"]
    assert effect == pytest.approx(math.log(1.1 * 1.2) / 4)


def test_sweeps_stay_apart_by_publication_and_work():
    found = effects(runs("a", (1, 1), (2, 2)) + runs("a", (1, 2), (2, 2), sweep="two"))
    assert len(found["a"]) == 2
    assert set(effects(runs("a", (1, 1), (2, 2)) + runs("b", (1, 1), (2, 2)))) == {"a", "b"}


def test_one_bad_publication_does_not_decide():
    found = {"a": [0.01], "b": [0.02, 0.02], "c": [0.03], "bad": [0.9]}
    selection = selection_of(found)
    assert selection.shift == pytest.approx(0.025)
    assert selection.error < 0.02
    assert (selection.publications, selection.sweeps) == (4, 5)


def test_choosing_never_makes_an_answer_faster():
    assert selection_of({"a": [-0.2], "b": [-0.1]}).shift == 0
    assert selection_of({}).error == 0


def test_a_publication_is_told_by_the_others():
    assert held_out({"a": [0.1], "b": [0.02], "c": [0.04]})["a"] == pytest.approx((0.03, 0.1))
