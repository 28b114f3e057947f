"""Screening by bounds spares simulations and never changes what is best."""

import functools

import numpy as np
import pytest

from tests.optimizer import toy_search
from tests.optimizer.test_exact import search, small_question
from trainscout.optimizer.choices import layout_of, worth
from trainscout.optimizer.options import ExecutorOptions

FEW = {"n_trials": 60, "batch_size": 8}


@functools.cache
def of_whole_space(sampler, gib, objective):
    """The searches of the whole space that several tests look at."""
    return search(sampler, small_question(gib=gib), objective=objective, top_k=3)


def launchable(result):
    return [t for t in result.trials if t.status != "invalid"]


def simulated(result):
    counts = result.counts()
    return counts["ok"] + counts["oom"]


@pytest.mark.parametrize(
    ("objective", "gib"),
    [
        ("step_time", 1.0),
        (("step_time", "memory"), 80.0),
        pytest.param("step_time", 80.0, marks=pytest.mark.deep),
        pytest.param(("step_time", "memory"), 1.0, marks=pytest.mark.deep),
    ],
)
def test_screening_the_whole_space_finds_the_same_best_with_fewer_simulations(objective, gib):
    truth, screened = (of_whole_space(each, gib, objective) for each in ("grid", "random"))
    assert [t.recipe for t in screened.pareto] == [t.recipe for t in truth.pareto]
    if isinstance(objective, str):
        assert [t.values for t in screened.best] == [t.values for t in truth.best]
    assert simulated(screened) < simulated(truth)
    assert len(launchable(screened)) == len(launchable(truth))


def test_what_the_memory_bound_resolves_does_not_fit():
    truth = {t.recipe: t for t in launchable(of_whole_space("grid", 1.0, "step_time"))}
    resolved = [
        t for t in of_whole_space("random", 1.0, "step_time").trials if t.rule == "memory_bound"
    ]
    assert resolved
    assert all(truth[t.recipe].status == "oom" for t in resolved)
    assert all(t.reason and "GiB" in t.reason for t in resolved)


def test_when_nothing_fits_the_closest_miss_is_simulated():
    result = search("random", small_question(gib=0.5))
    misses = [t for t in result.trials if t.status == "oom"]
    assert result.counts()["ok"] == 0
    assert 1 <= len(misses) < len(result.trials)
    closest = max(t.prediction.memory.headroom_bytes for t in misses)
    truth = launchable(search("grid", small_question(gib=0.5)))
    assert closest == max(t.prediction.memory.headroom_bytes for t in truth)


def test_a_simulator_without_bounds_is_not_screened():
    space = {"knobs": {"tp": [1, 2, 4, 8]}}
    result = toy_search.search("random", question=small_question(), space=space, n_trials=None)
    assert not {"memory_bound", "time_bound"} & set(result.counts_by_rule("pruned"))


def test_workers_do_not_change_what_is_screened():
    alone = search("tpe", small_question(gib=1.0), **FEW)
    many = search("tpe", small_question(gib=1.0), executor=ExecutorOptions("loky", 2), **FEW)
    assert [(t.recipe, t.status, t.rule) for t in alone.trials] == [
        (t.recipe, t.status, t.rule) for t in many.trials
    ]


def test_a_grid_simulates_every_recipe():
    counts = of_whole_space("grid", 1.0, "step_time").counts()
    assert counts["pruned"] == 0
    assert counts["oom"] > 0


def test_screening_can_be_switched_off():
    assert not search("random", small_question(gib=1.0), bounds=False, **FEW).counts()["pruned"]


def worth_of(trials, found):
    """What trials are worth over what ``found`` holds that fits."""
    losses = np.array([t.values for t in trials])
    chances = np.array([t.prediction.memory.fit_probability for t in trials])
    return worth(losses, chances, [t.values for t in found.pareto]).tolist()


@pytest.mark.parametrize(
    ("gib", "objective"),
    [(1.0, "step_time"), (0.85, "step_time"), (1.0, ("step_time", "memory"))],
)
def test_exact_search_finds_the_tight_recipes_that_are_worth_most(gib, objective):
    asked = small_question(gib=gib)
    grid = of_whole_space("grid", gib, objective)
    tight, most = [t for t in grid.trials if t.status == "tight"], {}
    for trial, value in zip(tight, worth_of(tight, grid), strict=True):
        of = layout_of(trial.recipe)
        most[of] = max(value, most.get(of, 0))
    truth = sorted((value for value in most.values() if value > 0), reverse=True)
    assert truth
    found = search("exact", asked, objective=objective, top_k=3)
    assert found.certificate.proved
    values = worth_of(found.tight, found)
    assert values == pytest.approx(truth[: len(values)])
    assert len(values) == min(3, len(truth))
    assert all(t.status == "tight" for t in found.tight)
    assert found.counts()["tight"] == found.certificate.tight
