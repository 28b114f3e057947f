import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from reports.tables import prediction_report, search_report
from reports.terminal import as_text
from simulators.job import Recipe
from tests.samples import job_of, prediction, search_result


def report(**changes) -> str:
    return as_text(search_report(search_result(**changes), job_of, 10, Path("outputs/here")))


def test_the_report_answers_what_people_ask():
    text = report()
    lines = text.splitlines()
    assert "tiny on pair (16 x h100), batch 64 x 1024 tokens, bf16" in text
    first = next(line for line in lines if line.lstrip().startswith("1 "))
    for shown in ("tp4 pp2 dp2", "sp", "2.000", "50.0", "66.0", "10.0", "300"):
        assert shown in first
    assert "Why #1:" in text
    assert "500 ms less on bubble" in " ".join(text.split())
    assert "Error bar: none" in text
    assert "75.0 % fitted, 25.0 % estimated" in text
    assert "norm_fwd, embedding" in text
    assert "outputs/here" in text


def test_trials_are_counted_by_status_and_rule():
    text = " ".join(report().split())
    assert "7 points asked: 2 simulated and fit; 2 out of memory" in text
    assert "1 pruned (recompute_dominated 1)" in text
    assert "1 invalid (degrees_divide_world 1); 1 failed" in text


def test_a_prediction_shows_its_interval():
    result = search_result()
    best = replace(result.best[0], prediction=replace(prediction(), interval_s=(1.9, 2.1)))
    assert "Error bar: 1.900 s to 2.100 s" in report(best=(best,))


def test_recipes_that_cannot_be_told_apart_are_named():
    both = [
        replace(each, prediction=replace(prediction(), interval_s=(1.9, 2.1)))
        for each in search_result().best
    ]
    assert "How sure:" not in report()
    assert "How sure: #2 cannot be told apart from #1" in report(best=tuple(both))


def test_several_objectives_show_the_front():
    result = search_result()
    text = report(objectives=("cost", "mfu"), pareto=result.best)
    assert "Pareto-optimal recipes" in text
    assert "Why #1" not in text


def test_nothing_found_explains_itself():
    trials = tuple(t for t in search_result().trials if t.status != "ok")
    text = report(trials=trials, best=(), pareto=())
    assert "No recipe fits" in text
    assert "lacks 1.2 GiB" in text


def test_text_for_files_has_no_escape_codes():
    assert "\x1b" not in report()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width):
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, force_terminal=True, color_system=None)
    console.print(search_report(search_result(), job_of, 10, Path("outputs/here")))
    assert max(len(line) for line in buffer.getvalue().splitlines()) <= width


def test_one_prediction_shows_breakdown_and_memory():
    text = as_text(prediction_report(prediction(2.0, bubble=0.5), job_of(Recipe(tp=2))))
    assert "compute" in text
    assert "25.0 %" in text  # bubble 0.5 of 2.0
    assert "Memory by pipeline stage" in text
    assert "fits: 66.0 GiB of 76.0 GiB usable on stage 1" in text


def test_one_prediction_that_does_not_fit_says_by_how_much():
    text = as_text(prediction_report(prediction(headroom_gib=-3.5), job_of(Recipe())))
    assert "does not fit" in text
    assert "3.5 GiB too much" in text
