"""Enumerating in columns finds what looking at every point finds."""

import itertools

import pytest

from tests.optimizer.fake_simulator import SPACE, toy_question
from tests.optimizer.test_space import shipped
from trainscout.optimizer.enumeration import blocks
from trainscout.optimizer.survey import survey
from trainscout.optimizer.union import compile_space
from trainscout.pruning.equivalence import canonical
from trainscout.simulators.predictor.question.recipe import Recipe

TRICKY = {
    "knobs": {
        "tp": {"choices": [1, 2, 3, 8]},
        "pp": {"choices": [1, 2, 4]},
        "split": {"choices": [1, 3], "when": "pp > 1", "otherwise": 1},
        "vpp": {"choices": [2, 4], "when": "pp > 1 and num_layers / pp > 4", "otherwise": 1},
        "recompute": {"choices": ["none", "full"]},
        "recompute_layers": {"choices": [None, 1, 2], "when": "recompute == 'full'"},
    },
    "derived": {
        "micro_batch": "global_batch_size / (dp * split)",
        "first_stage_layers": "null if pp == 1 else num_layers // pp",
    },
    "constraints": ["num_gpus / tp > 1 or vpp == 1"],
    "constants": {"zero_stage": 0},
}


def plain_twin(space):
    """Points in order, launchable recipes by point, and how many each rule rejects."""
    points, recipes, rejected = {}, {}, {}
    for raw in itertools.product(*(range(len(knob.choices)) for knob in space.knobs)):
        point = space.canonical(raw)
        if point in points:
            continue
        candidate = space.candidate(point)
        if candidate.violation is not None and candidate.violation.rule == "constraint":
            continue
        values = {**space.question.quantities, **space.point(point)}
        if not all(each.holds(values) for group in space.constraints for each in group):
            continue
        points[point] = None
        if candidate.violation is None:
            recipes[point] = canonical(space.question.job(candidate.recipe))
        else:
            rule = candidate.violation.rule
            rejected[rule] = rejected.get(rule, 0) + 1
    return list(points), recipes, rejected


@pytest.mark.parametrize("spec", [SPACE, TRICKY, shipped("maya_table3")])
@pytest.mark.parametrize("block_points", [7, 1 << 18])
def test_a_survey_is_what_looking_at_every_point_finds(spec, block_points, monkeypatch):
    monkeypatch.setattr("trainscout.optimizer.enumeration.BLOCK_POINTS", block_points)
    space = compile_space(spec, toy_question())
    points, recipes, rejected = plain_twin(space)
    surveyed = survey(space)
    assert [tuple(p) for b in blocks(space) for p in b.indices.tolist()] == points
    assert {rule: entry.count for rule, entry in surveyed.rejected.items()} == rejected
    assert list(surveyed.row_of) == list(recipes)
    assert [surveyed.recipes[surveyed.row_of[point]] for point in recipes] == [*recipes.values()]
    assert list(surveyed.recipes) == list(dict.fromkeys(recipes.values()))
    assert surveyed.equal_points == len(recipes) - len(set(recipes.values()))
    assert set(surveyed.rejected_points) == set(points) - set(recipes)


def test_a_rejection_names_the_first_rule_and_its_reason():
    space = compile_space(TRICKY, toy_question())
    for rule, entry in survey(space).rejected.items():
        assert entry.example.rule == rule
        assert entry.example.reason


def test_points_that_are_not_launchable_have_no_row():
    surveyed = survey(compile_space(TRICKY, toy_question()))
    assert surveyed.row_of.get(surveyed.rejected_points[0]) is None
    assert surveyed.row_of.get(tuple(99 for _ in surveyed.space.knobs)) is None


def test_every_recipe_knows_its_point():
    surveyed = survey(compile_space(SPACE, toy_question()))
    for row, recipe in enumerate(surveyed.recipes):
        assert surveyed.point_of(recipe) == surveyed.points[row]
    with pytest.raises(KeyError):
        surveyed.point_of(Recipe(micro_batch=999))
