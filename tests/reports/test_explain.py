from dataclasses import replace

from tests.samples import job_of, prediction, search_result, trial
from trainscout.optimizer.trial import Choices
from trainscout.reports.explain import format_behind, why_best
from trainscout.simulators.predictor.question.recipe import Recipe


def kept(*trials, layouts):
    """A search that kept all its trials, best first, with the best of each layout."""
    found = search_result(trials=trials, best=trials, pareto=trials[:1])
    return replace(found, choices=Choices(layouts))


def test_says_which_parts_differ_and_by_how_much():
    best = trial(0, Recipe(tp=4), prediction=prediction(2.0, bubble=0.1, exposed_tp_comm=0.4))
    rival = trial(1, Recipe(tp=2), prediction=prediction(2.5, bubble=0.7, exposed_tp_comm=0.3))
    stated = why_best(kept(best, rival, layouts=(best, rival)), job_of)
    # Bubble 0.7 -> 0.1; TP communication 0.3 -> 0.4; compute is 1.5 in both.
    assert stated.startswith(
        "500 ms a step (20.0%) faster than the best of another layout, tp2 pp1 dp8"
    )
    assert "600 ms less on bubble" in stated
    assert "100 ms more on exposed TP comm" in stated
    assert "compute" not in stated


def test_the_same_layout_with_other_switches_is_no_rival():
    best = trial(0, Recipe(tp=4), prediction=prediction(2.0, bubble=0.1))
    switch = trial(
        1, Recipe(tp=4, overlap_grad_reduce=True), prediction=prediction(2.5, bubble=0.1)
    )
    other = trial(2, Recipe(tp=1), prediction=prediction(4.0, bubble=0.1))
    stated = why_best(kept(best, switch, other, layouts=(best, other)), job_of)
    assert stated.startswith("2.000 s a step (50.0%) faster than the best of another layout, tp1")
    alone = why_best(kept(best, switch, layouts=(best,)), job_of)
    assert alone == "It is the best of 2 that fit, all of one layout."


def test_another_layout_as_fast():
    trials = [trial(i, Recipe(tp=1 << i), prediction=prediction(2.0)) for i in range(3)]
    stated = why_best(kept(*trials, layouts=tuple(trials)), job_of)
    assert stated.startswith("as fast within 0.1% as the best of another layout, tp2")


def test_no_rival():
    alone = trial(0, Recipe(), prediction=prediction(2.0))
    assert "no other fits" in why_best(kept(alone, layouts=(alone,)), job_of)


def test_what_keeps_a_recipe_behind_is_its_largest_loss():
    best = prediction(2.0, bubble=0.1, dp_communication=0.3)
    slower = prediction(2.6, bubble=0.9, dp_communication=0.1)
    assert format_behind(best, slower) == "+800 ms bubble"
    # Where memory is the objective, what comes second may be faster.
    assert format_behind(slower, best) == "-800 ms bubble"
    assert format_behind(best, best) == "the same"
    assert format_behind(best, prediction(9.4, dp_communication=4.0)) == "+3.8 s compute"
    assert format_behind(best, prediction(9.4, dp_communication=7.0)) == "+6.7 s DP comm"
