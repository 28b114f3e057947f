from dataclasses import replace

import pytest

from tests.optimizer.fake_simulator import toy_question
from tests.samples import job_of, prediction, search_result, trial
from trainscout.optimizer.asked import AskedSearch
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import ExecutorOptions, SearchOptions
from trainscout.optimizer.study import run_search
from trainscout.optimizer.would_fit import WouldFit
from trainscout.reports.nothing_found import (
    closest_misses,
    format_relief,
    memory_stood_in_the_way,
    why_no_recipe,
    why_nothing_fits,
)
from trainscout.simulators.predictor.question.recipe import Recipe


def found_nothing(*trials, **changes):
    return search_result(trials=trials, best=(), pareto=(), **changes)


OOM = trial(0, Recipe(), "oom", prediction=prediction(1.0, -3.5))
FAILED = trial(1, Recipe(), "failed", reason="ZeroDivisionError: division by zero")
INVALID = trial(2, Recipe(), "invalid", rule="degrees_divide_world", reason="3 into 16")
PRUNED = trial(3, Recipe(), "pruned", rule="memory_bound", reason="needs at least 90 GiB")


def test_nothing_fits_names_the_closest_miss_and_the_rules():
    result = search_result()
    trials = tuple(t for t in result.trials if t.status != "ok")
    stated = why_nothing_fits(replace(result, trials=trials, best=(), pareto=()), job_of)
    # Two trials miss, by 3.5 and 1.25 GiB.
    assert "mb2" in stated
    assert "lacks 1.2 GiB on stage 1" in stated
    assert "1 invalid by degrees_divide_world (for example: 3 into 16)" in stated
    assert "1 pruned by recompute_dominated" in stated
    assert "ZeroDivisionError" in stated


def test_all_failed_is_not_called_a_lack_of_memory():
    stated = why_nothing_fits(found_nothing(FAILED, replace(FAILED, number=5), INVALID), job_of)
    assert stated.startswith("No recipe could be simulated: all 2 failed.")
    assert "ZeroDivisionError" in stated
    assert "fits" not in stated


def test_pruned_by_bounds_alone_says_what_is_needed():
    result = found_nothing(PRUNED)
    assert not closest_misses(result)
    assert memory_stood_in_the_way(result)
    assert "1 pruned by memory_bound (for example: needs at least 90 GiB)" in why_nothing_fits(
        result, job_of
    )


@pytest.mark.parametrize(
    ("stopped", "advice"),
    [("timeout", "search.timeout_s"), ("interrupted", "resume=true")],
)
def test_stopped_before_the_first(stopped, advice):
    for trials in ((), (INVALID,)):
        stated = why_nothing_fits(found_nothing(*trials, stopped=stopped), job_of)
        assert stated.startswith("No recipe was looked at")
        assert advice in stated


@pytest.mark.parametrize(
    ("stopped", "advice"),
    [
        ("n_trials", "search.n_trials="),
        ("converged", "search.patience=null"),
        ("timeout", "search.timeout_s="),
        ("interrupted", "resume=true"),
    ],
)
def test_what_was_not_looked_at_is_counted(stopped, advice):
    stated = why_nothing_fits(found_nothing(OOM, stopped=stopped, space_size=1001), job_of)
    assert f"1,000 points of the space were not looked at: {advice}" in stated


@pytest.mark.parametrize("stopped", ["space_exhausted", "proved"])
def test_a_whole_space_leaves_nothing_to_look_at(stopped):
    stated = why_nothing_fits(found_nothing(OOM, stopped=stopped), job_of)
    assert "not looked at" not in stated


def test_memory_stood_in_the_way_only_where_it_did():
    assert memory_stood_in_the_way(found_nothing(OOM))
    assert not memory_stood_in_the_way(found_nothing(FAILED, INVALID))


def test_relief_names_the_setting_and_what_it_leaves():
    job = job_of(Recipe(tp=2))
    (line,) = format_relief([WouldFit(("cluster.num_nodes=4",), job, prediction(2.0, 10.0))])
    assert "cluster.num_nodes=4, with tp2 pp1 dp8" in line
    assert "10.0 GiB free of 76.0 GiB" in line


def test_no_relief_says_what_was_tried():
    (line,) = format_relief([])
    assert "64 times the nodes" in line


SPACE = {"name": "one", "knobs": {"micro_batch": {"choices": [1, 2]}}}


def test_an_exact_search_says_that_nothing_was_overlooked():
    asked = toy_question(num_nodes=1, memory_bytes=2**28)
    result = run_search(
        AskedSearch(
            asked,
            SPACE,
            Objective(("step_time",)),
            SearchOptions(sampler="exact", pruning=(), n_trials=None, patience=None),
            executor=ExecutorOptions("serial"),
        )
    )
    first, *_, last = why_no_recipe(result, asked.job).splitlines()
    assert first.startswith("No recipe fits")
    assert last.startswith("No recipe fits: all were simulated, or their bounds rule them out.")
