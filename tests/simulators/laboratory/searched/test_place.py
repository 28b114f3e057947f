from dataclasses import replace

import numpy as np
import pytest

from tests.simulators.laboratory.published.runs import RUN, declarations
from trainscout.optimizer.survey import LeftOut, survey
from trainscout.optimizer.union import compile_space
from trainscout.simulators.laboratory.searched.answer import default_software, place_of
from trainscout.simulators.laboratory.searched.grouping import published_questions
from trainscout.simulators.predictor.question.recipe import Recipe

SPACE = {
    "name": "small",
    "knobs": {"tp": [1, 2], "sp": {"choices": [True, False], "when": "tp > 1"}},
    "constants": {"pp": 2},
}


@pytest.fixture(scope="module")
def small():
    (published,) = published_questions([RUN], declarations(), default_software())
    return survey(compile_space(SPACE, published.question))


def test_a_recipe_of_the_space_is_inside(small):
    assert place_of(Recipe(tp=2, pp=2, sp=True), small).inside


def test_one_that_means_the_same_is_inside_too(small):
    place = place_of(
        Recipe(tp=1, pp=2, overlap_param_gather=False, embedding_as_layer=False), small
    )
    assert place.inside
    meant = replace(place.recipe, cp_comm_type="a2a")
    assert place_of(meant, small) == place


def test_one_that_a_survey_leaves_out_is_inside_all_the_same(small):
    """Of a large space a survey lists only what bounds leave open."""
    few = replace(small, recipes=small.recipes.take(np.array([0])), left_out=LeftOut())
    for recipe in small.recipes:
        assert place_of(recipe, few) == place_of(recipe, small)
    assert not place_of(Recipe(tp=4, pp=2, sp=True), few).inside


def test_an_absent_recipe_says_what_the_nearest_has(small):
    place = place_of(Recipe(tp=4, pp=2, sp=True), small)
    assert not place.inside
    assert place.why == "in no recipe of the space: tp=4 (nearest: 2)"


def test_a_recipe_that_cannot_be_launched_says_the_rule(small):
    place = place_of(Recipe(tp=3, pp=2), small)
    assert not place.inside
    assert place.why.startswith("refused by degrees_divide_world: tp x pp x cp = 3 x 2 x 1")
