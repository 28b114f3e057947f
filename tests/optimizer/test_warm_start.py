"""Recipes known before a search are tried first."""

import json
import os

import pytest

from tests.optimizer.test_exact import SPACE, search, small_question
from trainscout.optimizer.options import SearchOptions
from trainscout.optimizer.survey import survey
from trainscout.optimizer.union import compile_space
from trainscout.optimizer.warm_start import known_recipes, nearest_rows
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.recipe import Recipe

KNOWN = {"tp": 2, "pp": 2, "micro_batch": 1, "sp": True}


def write(path, content):
    path.write_text(json.dumps(content))
    return str(path)


def test_a_known_recipe_is_the_first_trial(tmp_path):
    file = write(tmp_path / "mine.json", KNOWN)
    result = search("random", n_trials=10, warm_start=file, bounds=False)
    first = next(t for t in result.trials if t.status != "invalid")
    assert first.recipe == Recipe(**KNOWN)


def test_the_results_of_a_search_can_be_given_as_its_directory(tmp_path):
    entries = [{"recipe": {**KNOWN, "dp": 4}, "prediction": {"step_time_s": 1.0}}]
    write(tmp_path / "top_recipes.json", entries)
    options = SearchOptions(sampler="tpe", warm_start=str(tmp_path))
    assert known_recipes(options) == (Recipe(**KNOWN),)


def test_of_several_searches_the_last_is_given(tmp_path):
    for age_s, tp in enumerate((4, 2, 8)):
        directory = tmp_path / str(tp)
        directory.mkdir()
        write(directory / "top_recipes.json", [{"recipe": {"tp": tp}}])
        os.utime(directory / "top_recipes.json", (1e9 - age_s, 1e9 - age_s))
    options = SearchOptions(sampler="tpe", warm_start=str(tmp_path))
    assert known_recipes(options) == (Recipe(tp=4),)


def test_yaml_and_lists_are_read(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text("- {tp: 2}\n- {tp: 4, sp: true}\n- {tp: 2}\n")
    options = SearchOptions(warm_start=str(path))
    assert known_recipes(options) == (Recipe(tp=2), Recipe(tp=4, sp=True))


def test_what_the_space_does_not_hold_is_moved_to_the_nearest():
    surveyed = survey(compile_space(SPACE, small_question()))
    # Sixteen micro-batches are not among the choices; four are the nearest.
    (row,) = nearest_rows(surveyed, (Recipe(**{**KNOWN, "micro_batch": 16}),))
    assert surveyed.recipes[row] == Recipe(**{**KNOWN, "micro_batch": 4})


def test_every_surveyed_recipe_is_nearest_to_itself():
    surveyed = survey(compile_space(SPACE, small_question()))
    rows = list(range(0, len(surveyed), 7))
    assert nearest_rows(surveyed, tuple(surveyed.recipes[row] for row in rows)) == rows


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"tpp": 2}', "tp"),
        ('{"tp": [2]}', "no value"),
        ('{"tp": "two"}', "a whole number"),
        ("[1, 2]", "no recipe"),
        ("{}", "no recipe"),
        ("{", "cannot be read"),
    ],
)
def test_files_that_are_no_recipes_are_refused(tmp_path, content, words):
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(InputError, match=words):
        known_recipes(SearchOptions(warm_start=str(path)))


@pytest.mark.parametrize("sampler", ["exact", "grid"])
def test_searches_that_leave_nothing_out_refuse_it(sampler, tmp_path):
    file = write(tmp_path / "mine.json", KNOWN)
    with pytest.raises(InputError, match="leaves no recipe out"):
        known_recipes(SearchOptions(sampler=sampler, warm_start=file))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        known_recipes(SearchOptions(warm_start=str(tmp_path / "none.json")))
