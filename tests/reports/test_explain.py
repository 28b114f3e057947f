from dataclasses import replace

from reports.explain import why_best, why_nothing_fits
from simulators.job import Recipe
from tests.samples import job_of, prediction, search_result, trial


def test_says_which_parts_differ_and_by_how_much():
    best = trial(0, Recipe(tp=4), prediction=prediction(2.0, bubble=0.1, exposed_tp_comm=0.4))
    rival = trial(1, Recipe(tp=2), prediction=prediction(2.5, bubble=0.7, exposed_tp_comm=0.3))
    said = why_best([best, rival], job_of)
    # Bubble 0.7 -> 0.1; TP communication 0.3 -> 0.4; compute is 1.5 in both.
    assert said.startswith("500 ms a step (20.0%) faster than #2 (tp2 pp1 dp8")
    assert "600 ms less on bubble" in said
    assert "100 ms more on exposed TP comm" in said
    assert "compute" not in said


def test_recipes_as_fast_are_passed_over_for_the_next_that_is_not():
    best = trial(0, Recipe(tp=4), prediction=prediction(2.0, bubble=0.1))
    tied = trial(1, Recipe(tp=2), prediction=prediction(2.0005, bubble=0.1))
    slower = trial(2, Recipe(tp=1), prediction=prediction(4.0, bubble=0.1))
    said = why_best([best, tied, slower], job_of)
    assert "2.000 s a step (50.0%) faster than #3 (tp1 pp1 dp16" in said
    assert said.endswith("#2 as fast within 0.1 %.")


def test_all_as_fast():
    trials = [trial(i, Recipe(micro_batch=i + 1), prediction=prediction(2.0)) for i in range(3)]
    assert why_best(trials, job_of) == "#2, #3 as fast within 0.1 %; nothing else fits."


def test_no_rival():
    assert "only recipe" in why_best([trial(0, Recipe())], job_of)


def test_nothing_fits_names_the_closest_miss_and_the_rules():
    result = search_result()
    trials = tuple(t for t in result.trials if t.status != "ok")
    said = why_nothing_fits(replace(result, trials=trials, best=(), pareto=()), job_of)
    # Two trials miss, by 3.5 and 1.25 GiB.
    assert "mb2" in said
    assert "lacks 1.2 GiB on stage 1" in said
    assert "1 invalid by degrees_divide_world (for example: 3 into 16)" in said
    assert "1 pruned by recompute_dominated" in said
    assert "ZeroDivisionError" in said
