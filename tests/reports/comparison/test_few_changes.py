"""Which one or two changes to begin with."""

from dataclasses import replace

from tests.reports.comparison.samples import predictions, space
from trainscout.reports.comparison.comparison import compare
from trainscout.simulators.predictor.question.recipe import Recipe

PLAIN = Recipe(tp=2, sp=True)
OTHER = replace(PLAIN, micro_batch=2, tp_comm_overlap=True, pp=2)


def few(step_s, *room, other=OTHER):
    """The fields to change and the step then; of a space with few knobs."""
    small = space(micro_batch={"choices": [1, 2]}, pp={"choices": [1, 2]})
    second = None if other is None else ("b", "", other)
    found = compare(("a", "", PLAIN), second, small, predictions(step_s, *room)).few
    return found and ({name for fields, _, _ in found.changes for name in fields}, found.step_s)


def step_of_two(r):
    return 20 - 5 * r.tp_comm_overlap * (r.micro_batch == 2) - 4 * (r.pp == 2)


def test_two_that_lead_to_the_other_recipe_are_found_though_each_alone_brings_nothing():
    assert few(step_of_two) == ({"micro_batch", "tp_comm_overlap"}, 15)
    # Alone, only knobs that bring something are looked at in pairs.
    assert few(step_of_two, other=None) == ({"pp"}, 16)


def test_what_does_not_fit_is_no_advice():
    assert few(step_of_two, lambda r: -1.0 if r.micro_batch == 2 else 10.0) == ({"pp"}, 16)


def test_what_fits_only_beside_another_change_is_looked_at():
    def step(r):
        return 20 - 5 * (r.micro_batch == 2) - (r.pp == 2)

    def room(r):
        return -1.0 if r.micro_batch == 2 and r.pp == 1 else 10.0

    assert few(step, room, other=None) == ({"micro_batch", "pp"}, 14)


def test_a_second_change_that_brings_nothing_is_not_named():
    assert few(lambda r: 20 - 5 * (r.pp == 2) - 0.01 * (r.micro_batch == 2)) == ({"pp"}, 15)


def test_a_detour_that_beats_the_way_to_the_other_recipe_is_taken():
    # Eight-fold tensor parallelism is not what b has.
    assert few(lambda r: 20 - r.tp - (r.pp == 2), other=replace(PLAIN, pp=2)) == ({"tp", "pp"}, 11)


def test_where_nothing_is_faster_nothing_is_named():
    assert few(lambda r: 20 + r.pp + r.micro_batch, other=OTHER) is None
