from dataclasses import replace

from tests.reports.comparison.samples import QUESTION, Formula, predictions, space
from tests.samples import MODEL
from trainscout.optimizer.union import compile_space
from trainscout.reports.comparison.one_knob import one_knob
from trainscout.reports.comparison.predictions import Predictions
from trainscout.simulators.predictor.question.recipe import Recipe

FIRST = Recipe(tp=2, sp=True)


def changes(neighbours) -> list[dict[str, object]]:
    return [dict(zip(each.fields, each.after, strict=True)) for each in neighbours]


def test_every_single_change_that_can_be_launched_best_first():
    made = predictions(lambda r: 10 - r.micro_batch + (r.recompute == "full") * 3)
    found = one_knob(FIRST, space(), made)
    shown = changes(found)
    assert {"micro_batch": 2} in shown
    assert {"recompute": "full"} in shown
    assert {"recompute": "selective"} in shown
    assert {"tp_comm_overlap": True} in shown
    steps = [each.prediction.step_time_s for each in found]
    assert steps == sorted(steps)
    assert shown[0] == {"micro_batch": 2}
    assert all(made.launchable(each.recipe) for each in found)
    assert all(each.recipe != FIRST for each in found)


def test_those_that_fit_come_first():
    made = predictions(lambda r: 10 - r.micro_batch, lambda r: -1 if r.micro_batch == 2 else 1)
    found = one_knob(FIRST, space(), made)
    fits = [each.prediction.fits for each in found]
    assert fits == sorted(fits, reverse=True)
    assert changes(found)[-1] == {"micro_batch": 2}


def test_switches_that_lose_their_meaning_are_turned_off():
    # tp=1 has nothing to shard sequences over.
    found = one_knob(FIRST, space(), predictions(lambda r: 10.0 + r.tp))
    assert {"tp": 1, "sp": False} in changes(found)


def test_a_partner_where_a_knob_needs_one():
    # Virtual stages need pp > 1, and bring more than the pipeline alone.
    made = predictions(lambda r: 10.0 + r.pp - 5 * (r.vpp > 1))
    found = one_knob(Recipe(), space(), made)
    assert {"vpp": 2, "pp": 2} in changes(found)


def test_no_partner_that_does_all_by_itself():
    made = predictions(lambda r: 10.0 + r.pp)
    found = one_knob(Recipe(), space(), made)
    assert not any("vpp" in change for change in changes(found))
    assert {"pp": 2} in changes(found)


def test_spellings_of_the_same_recipe_are_left_out():
    knobs = space(etp={"choices": [None, 2]}, zero_stage={"choices": [0, 1]})
    # 16 GPUs in one replica: there is nothing to shard.
    whole = Recipe(tp=8, pp=2)
    found = one_knob(whole, knobs, predictions(lambda r: 10.0))
    assert not any("zero_stage" in change for change in changes(found))
    assert {"zero_stage": 0} in changes(one_knob(FIRST, knobs, predictions(lambda r: 10.0)))


def test_what_the_space_derives_follows():
    # Six layers and both ends fill four stages evenly; six layers alone do not.
    question = replace(QUESTION, model=replace(MODEL, num_layers=6))
    ends = {"embedding_as_layer": "pp == 4", "loss_as_layer": "pp == 4"}
    knobs = compile_space({"knobs": {"pp": {"choices": [1, 4]}}, "derived": ends}, question)
    made = Predictions(question, Formula(lambda r: 10.0, lambda r: 10.0))
    (found,) = one_knob(Recipe(), knobs, made)
    assert changes([found]) == [{"pp": 4, "embedding_as_layer": True, "loss_as_layer": True}]


def test_small_differences_are_not_told_apart():
    made = predictions(lambda r: 10.0 - 0.001 * r.micro_batch - 9 * (r.recompute == "full"))
    found = {(each.fields[0], each.after[0]): each for each in one_knob(FIRST, space(), made)}
    assert found["micro_batch", 2].distinguishable is False
    assert found["recompute", "full"].distinguishable is True
