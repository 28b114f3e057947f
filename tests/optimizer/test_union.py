"""A space of several frameworks is searched as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.simulators.jobs import MOE, TINY, make_job
from trainscout.optimizer.bounding import BoundingSurvey
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.survey import survey
from trainscout.optimizer.union import UnionSpace, compile_space
from trainscout.pruning.bounds.recipe_bounds import Bounds
from trainscout.pruning.equivalence import canonical
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.registry import SimulatorSpec

SHARDED = Framework(name="sharded", space="b", fusion="eager", copies_gathered=True)
WHOLE = Framework(name="whole", space="a", alternatives=(SHARDED,))
A: dict[str, Any] = {
    "name": "a",
    "of": "a",
    "knobs": {"tp": {"choices": [1, 2]}, "micro_batch": {"choices": [1, 2]}},
    "derived": {"sp": "tp > 1"},
}
B: dict[str, Any] = {
    "name": "b",
    "of": "b",
    "knobs": {"zero_stage": {"choices": [2, 3]}, "micro_batch": {"choices": [4, 1]}},
}
BOTH: dict[str, Any] = {"name": "both", "parts": {"a": A, "b": B}}


def asked(framework: Framework = WHOLE) -> Question:
    job = make_job(TINY, batch=32)
    return Question(job.model, job.gpu, job.cluster, job.training, framework)


def test_every_recipe_of_every_part_is_there_once_and_names_its_framework() -> None:
    surveyed = survey(compile_space(BOTH, asked()))
    assert [recipe.framework for recipe in surveyed.recipes] == ["whole"] * 4 + ["sharded"] * 4
    alone = [*survey(compile_space(A, asked(replace(WHOLE, alternatives=())))).recipes]
    assert [replace(recipe, framework=None) for recipe in surveyed.recipes[:4]] == alone


def test_points_say_their_recipes() -> None:
    surveyed = survey(compile_space(BOTH, asked()))
    space = surveyed.space
    assert [knob.name for knob in space.knobs] == ["framework", "tp", "micro_batch", "zero_stage"]
    assert space.knobs[2].choices == (1, 2, 4)
    for row, point in enumerate(surveyed.points):
        recipe = surveyed.recipes[row]
        assert canonical(space.question.job(space.candidate(point).recipe)) == recipe
        assert space.canonical(point) == point
        assert surveyed.row_of[point] == row == surveyed.nearest(point)
        assert space.point(point)["micro_batch"] == recipe.micro_batch
    # What a part does not have is no point, what it does not know makes no difference.
    assert space.candidate((0, 0, 2, 0)).violation is not None
    assert space.canonical((0, 1, 1, 1)) == (0, 1, 1, 0)


def test_choices_given_to_all_hold_whatever_gives_the_value() -> None:
    held = {**BOTH, "knobs": {"sp": {"choices": [False]}, "micro_batch": {"choices": [1]}}}
    surveyed = survey(compile_space(held, asked()))
    assert {(each.framework, each.tp, each.micro_batch) for each in surveyed.recipes} == {
        ("whole", 1, 1),
        ("sharded", 1, 1),
    }
    tensor = {**BOTH, "knobs": {"tp": {"choices": [2]}}}
    assert {each.framework for each in survey(compile_space(tensor, asked())).recipes} == {"whole"}


def test_a_value_that_is_asked_for_holds_where_a_part_would_have_another() -> None:
    stage = {"choices": [0, 1], "when": "tp == 1", "otherwise": 1}
    part = {**A, "knobs": {**A["knobs"], "zero_stage": stage}}
    both = {**BOTH, "parts": {"a": part, "b": B}, "knobs": {"zero_stage": 0}}
    found = survey(compile_space(both, asked())).recipes
    assert {(each.tp, each.zero_stage) for each in found if each.framework == "whole"} == {(1, 0)}


def test_what_changes_numbers_is_looked_at_where_it_is_allowed() -> None:
    knobs = {"grad_dtype": {}, "precision": {"choices": [None, "fp8"]}}
    spec = {"name": "numbers", "knobs": knobs}

    def looked_at(**numerics: str) -> set[tuple[str | None, str | None]]:
        recipes = survey(compile_space({**spec, **numerics}, asked(Framework()))).recipes
        return {(recipe.grad_dtype, recipe.precision) for recipe in recipes}

    assert looked_at() == {(None, None)}
    assert looked_at(numerics="16bit") == {(None, None), ("bf16", None)}
    assert len(looked_at(numerics="any")) == 4
    with pytest.raises(InputError, match="16bit"):
        compile_space({**spec, "knobs": {"grad_dtype": {"choices": ["bf16"]}}}, asked())


def test_one_framework_narrows_the_space_to_its_part() -> None:
    space = compile_space(BOTH, asked(SHARDED))
    assert not isinstance(space, UnionSpace)
    assert space.name == "b"
    assert {recipe.framework for recipe in survey(space).recipes} == {None}


def test_a_framework_that_can_run_nothing_is_refused() -> None:
    with pytest.raises(InputError) as refused:
        compile_space(A, asked(SHARDED))
    assert refused.value.field == "framework"
    assert "space=b" in str(refused.value)
    with pytest.raises(InputError, match=r"shardd.*did you mean 'sharded'"):
        compile_space({**BOTH, "knobs": {"framework": {"choices": ["shardd"]}}}, asked())
    neither = {"framework": {"choices": ["sharded"]}, "tp": {"choices": [2]}}
    with pytest.raises(InputError, match=r"framework, space.knobs.tp.*no part of the space"):
        survey(compile_space({**BOTH, "knobs": neither}, asked()))
    dense = replace(SHARDED, lacks=("experts",))
    experts = make_job(MOE, batch=32)
    with pytest.raises(InputError, match="framework=sharded: sharded has no experts"):
        survey(compile_space(B, replace(asked(dense), model=experts.model)))
    with pytest.raises(InputError, match="tq"):
        compile_space({**BOTH, "knobs": {"tq": {"choices": [1]}}}, asked())


def test_bounds_are_those_of_each_framework() -> None:
    surveyed = survey(compile_space(BOTH, asked()))
    every = BoundingSurvey(surveyed, Objective(("step_time",)), SimulatorSpec("replay"))
    together = every.all_rows().losses[:, 0]
    alone = [
        Bounds(surveyed.space.question.job)(surveyed.recipes.take(slice(row, row + 1))).step_time_s
        for row in range(len(surveyed))
    ]
    assert together == pytest.approx(np.concatenate(alone), rel=1e-12)
