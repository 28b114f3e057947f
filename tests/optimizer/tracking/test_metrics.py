from dataclasses import fields, replace

import pytest

from tests.samples import prediction, search_result, trial
from trainscout.optimizer.objective import MEASURES
from trainscout.optimizer.tracking.metrics import (
    best_so_far,
    flat_params,
    prediction_metrics,
    search_metrics,
)
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.recipe import Recipe


def test_figures_of_a_prediction_have_their_units():
    metrics = prediction_metrics(prediction(2.5, bubble=0.6))
    assert metrics["step_time_s"] == 2.5
    assert metrics["memory/headroom_gib"] == 10.0
    assert metrics["memory/peak_reserved_gib"] == 66.0
    assert metrics["breakdown/bubble_s"] == pytest.approx(0.6)
    assert metrics["breakdown/bubble_s"] + metrics["breakdown/compute_s"] == pytest.approx(2.5)
    assert metrics["evidence/fitted_share"] == 0.75


UNITS = ("_s", "_usd", "_gib", "_share", "_per_s", "_per_gpu", "mfu", "causal", "hfu", "_points")


def test_every_name_ends_in_its_unit_or_counts_trials():
    bar = replace(prediction(), interval_s=(1.0, 3.0))
    result = search_result(best=(trial(0, Recipe(), prediction=bar),))
    names = {**search_metrics(result), **best_so_far(result)}
    for name in names:
        assert name.endswith(UNITS) or name.startswith("trials/"), name


def test_a_search_calls_its_best_figures_as_a_recipe_does():
    best = search_result().best[0].prediction
    of_search = search_metrics(search_result())
    for name, value in prediction_metrics(best).items():
        assert of_search[f"best/{name}"] == value


def test_every_number_of_a_prediction_is_tracked():
    metrics = prediction_metrics(prediction())
    for field in fields(Prediction):
        if field.type == "float":
            assert field.name in metrics


@pytest.mark.parametrize("name", MEASURES)
def test_the_best_so_far_only_gets_better(name):
    values = [5.0, 7.0, 3.0, 3.0, 9.0, 1.0]
    trials = tuple(trial(2 * at, Recipe(), values=(value,)) for at, value in enumerate(values))
    trials += (trial(11, Recipe(), "invalid", rule="no", reason="no"),)
    (points,) = best_so_far(search_result(trials=trials[::-1], objectives=(name,))).values()
    scale = 2**-30 if name == "memory" else 1.0
    smaller = [(0, 5), (3, 5), (4, 3), (9, 3), (10, 1), (11, 1)]
    larger = [(0, 5), (1, 5), (2, 7), (7, 7), (8, 9), (11, 9)]
    expected = smaller if MEASURES[name].minimise else larger
    assert points == [(step, value * scale) for step, value in expected]


def test_several_objectives_have_a_curve_each():
    trials = (trial(0, Recipe(), values=(2.0, 2.0**30)), trial(1, Recipe(), values=(3.0, 2.0**29)))
    found = best_so_far(search_result(trials=trials, objectives=("step_time", "memory")))
    assert found == {
        "best_so_far/step_time_s": [(0, 2.0), (1, 2.0)],
        "best_so_far/peak_reserved_gib": [(0, 1.0), (1, 0.5)],
    }


def test_a_search_that_found_nothing_has_no_curve():
    failed = trial(0, Recipe(), "failed", reason="ZeroDivisionError")
    assert best_so_far(search_result(trials=(failed,), best=(), pareto=())) == {}


def test_configuration_is_flattened_to_dotted_names():
    assert flat_params({"a": {"b": 1, "c": {"d": 2}}, "e": [3]}) == {
        "a.b": 1,
        "a.c.d": 2,
        "e": [3],
    }


def test_no_password_is_tracked():
    flat = flat_params({"tracking": {"uri": "https://me:secret@host"}})
    assert flat == {"tracking.uri": "https://me:***@host"}


def test_an_error_bar_becomes_two_metrics():
    bare = prediction()
    assert "step_time_low_s" not in prediction_metrics(bare)
    metrics = prediction_metrics(replace(bare, interval_s=(1.5, 2.5)))
    assert (metrics["step_time_low_s"], metrics["step_time_high_s"]) == (1.5, 2.5)
