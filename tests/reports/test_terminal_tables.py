import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.samples import CLUSTER, GPU, MODEL, TRAINING, job_of, prediction, search_result
from trainscout.optimizer.trial import Choices
from trainscout.reports import error_bars
from trainscout.reports.prediction_report import prediction_report
from trainscout.reports.terminal_tables import search_report
from trainscout.reports.tracker_runs import search_record
from trainscout.reports.wording import format_seconds
from trainscout.simulators.predictor.io.terminal import as_text
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.uncertainty import fastest
from trainscout.simulators.predictor.uncertainty.fastest import (
    Fastest,
    FastRun,
    Selection,
    kind_of,
)


def report(verbosity="verbose", relief=(), **changes) -> str:
    found = search_result(**changes)
    return as_text(
        search_report(found, job_of, Path("outputs/here"), verbosity=verbosity, relief=relief)
    )


def test_the_report_answers_what_people_ask():
    text = report()
    lines = text.splitlines()
    assert "tiny on pair (16 x h100), batch 64 x 1024 tokens, bf16" in text
    first = next(line for line in lines if line.lstrip().startswith("1 "))
    for shown in ("tp4 pp2 dp2", "sp", "2.000", "50.0", "66.0", "300"):
        assert shown in first
    assert "Why #1:" in text
    assert "500 ms less on bubble" in " ".join(text.split())
    assert "Error bar: none" in " ".join(text.split())
    assert "75.0 % fitted, 25.0 % estimated" in text
    assert "bash outputs/here/launch.sh" in text


def chosen_from(monkeypatch, mfu, verbosity="verbose"):
    """The report of a search whose best has an error bar, where a published run had this MFU."""
    result = search_result()
    sure = replace(prediction(), interval_s=(1.8, 2.4))
    job = job_of(result.best[0].recipe)
    costs = Selection(shift=0.01, error=0.0, publications=3, sweeps=7)
    published = FastRun(kind_of(job), "hopper", 989.0, mfu, "id", "their paper", "Tiny", 1024)
    found = Fastest(costs, (published,))
    for module in (fastest, error_bars):
        monkeypatch.setattr(module, "published_fastest", lambda: found)
    best = (replace(result.best[0], prediction=sure), *result.best[1:])
    return " ".join(report(verbosity=verbosity, best=best).split())


def test_what_choosing_costs_is_said(monkeypatch):
    text = chosen_from(monkeypatch, 0.5)
    assert "step time 2.000 s, error bar 1.800 s to 2.400 s" in text
    assert "3 publications have sweeps (7), the layout predicted best was 1.0 % slower" in text
    assert "measure first" not in text


@pytest.mark.parametrize("verbosity", ["quiet", "verbose"])
def test_what_nobody_published_is_to_be_measured_first(monkeypatch, verbosity):
    text = chosen_from(monkeypatch, 0.4, verbosity)
    assert (
        "measure first the best published run of this kind reaches 40.0 % MFU (Tiny on 1,024 "
        "h100, undeclared: their paper), this claims 50.0 %"
    ) in text


def test_trials_are_counted_by_status_and_rule():
    text = " ".join(report(verbosity="verbose").split())
    assert "7 points proposed: 2 simulated and fit; 2 out of memory" in text
    assert "1 pruned (recompute_dominated 1)" in text
    assert "1 invalid (degrees_divide_world 1); 1 failed" in text


def test_the_answer_comes_before_everything_else():
    lines = report().splitlines()
    assert lines[1].split()[:4] == ["recipe", "tp4", "pp2", "dp2"]
    assert "fits: 66.0 of 76.0 GiB usable on stage 1, 10.0 GiB free" in lines[5]
    assert next(n for n, line in enumerate(lines) if "Best recipes" in line) > 6


def test_every_column_says_what_it_rests_on():
    heading = next(line for line in report().splitlines() if line.lstrip().startswith("# "))
    # A quarter of the time is estimated; nobody says that this GPU's price is an assumption.
    assert heading.split() == ["#", "recipe", *["estimated"] * 4, "mostly", "for"]


def test_figures_of_different_evidence_are_marked():
    result = search_result()
    measured = replace(prediction(), evidence_share={"measured": 1.0})
    best = (result.best[0], replace(result.best[1], prediction=measured))
    lines = report(best=best, choices=Choices(best)).splitlines()
    assert next(line for line in lines if line.startswith("# ")).split()[2:4] == ["m/f/e"] * 2
    assert " 50.0 e " in next(line for line in lines if line.startswith("1 "))
    assert " 50.0 m " in next(line for line in lines if line.startswith("2 "))


def test_the_others_say_what_keeps_them_behind():
    second = next(line for line in report().splitlines() if line.startswith("2 "))
    assert second.endswith("+500 ms bubble")


def test_quiet_is_the_answer_alone():
    text = report(verbosity="quiet")
    assert "launch.sh" in text
    for left_out in ("Best recipes", "Why #1", "Trials", "against memory"):
        assert left_out not in text


def test_verbose_leaves_nothing_out():
    text = report(verbosity="verbose")
    for shown in ("--tensor-model-parallel-size", "norm_fwd, embedding", "s of simulating"):
        assert shown in text


def test_a_prediction_shows_its_interval():
    result = search_result()
    best = replace(result.best[0], prediction=replace(prediction(), interval_s=(1.9, 2.1)))
    low, high = map(format_seconds, best.prediction.interval_s)
    assert f"Error bar: {low} to {high}" in " ".join(report(best=(best,)).split())


def test_recipes_that_cannot_be_told_apart_are_named():
    both = [
        replace(each, prediction=replace(prediction(), interval_s=(1.9, 2.1)))
        for each in search_result().best
    ]
    assert "How sure:" not in report()
    stated = " ".join(report(best=tuple(both), choices=Choices(tuple(both))).split())
    assert "How sure: #2 cannot be distinguished from #1" in stated


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
    assert "outputs/here" in text


def test_relief_follows_what_stood_in_the_way():
    trials = tuple(t for t in search_result().trials if t.status != "ok")
    for verbosity in ("quiet", "normal"):
        text = report(verbosity, ["Would fit: more nodes."], trials=trials, best=(), pareto=())
        assert text.index("lacks 1.2 GiB") < text.index("Would fit: more nodes.")


def test_text_for_files_has_no_escape_codes():
    assert "\x1b" not in report()


@pytest.mark.parametrize("verbosity", ["normal", "verbose"])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width, verbosity):
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, force_terminal=True, color_system=None)
    console.print(
        search_report(search_result(), job_of, Path("outputs/here"), verbosity=verbosity)
    )
    assert max(len(line) for line in buffer.getvalue().splitlines()) <= width


def test_one_prediction_shows_breakdown_and_memory():
    job = job_of(Recipe(tp=2))
    text = as_text(prediction_report(prediction(2.0, bubble=0.5), job))
    assert "compute" in text
    assert "25.0 %" in text  # bubble 0.5 of 2.0
    assert "Memory by pipeline stage" in text
    assert "Evidence:" not in text
    assert "Evidence:" in as_text(prediction_report(prediction(2.0), job, "verbose"))
    assert "fits: 66.0 of 76.0 GiB usable on stage 1" in text


def test_the_first_screen_of_one_prediction_has_what_decides():
    found = prediction(2.0, bubble=0.5, optimizer=0.001, host=0.002)
    stages = tuple(replace(found.memory.per_stage[0], stage=stage) for stage in range(12))
    found = replace(found, memory=replace(found.memory, per_stage=stages))
    short, whole = (
        as_text(prediction_report(found, job_of(Recipe(tp=2)), each)).splitlines()
        for each in ("normal", "verbose")
    )
    assert len(short) <= 30
    assert [line.split()[:2] for line in short if line.startswith("all else")] == [["all", "else"]]
    rows = [[line for line in each if line.split()[1:2] == ["2.00"]] for each in (short, whole)]
    assert [len(each) for each in rows] == [2, 12]
    assert any("the most and the least of 12" in line for line in short)


def test_one_prediction_that_does_not_fit_says_by_how_much():
    text = as_text(prediction_report(prediction(headroom_gib=-3.5), job_of(Recipe())))
    assert "does not fit" in text
    assert "3.5 GiB too much" in text


def test_a_number_means_the_same_recipe_wherever_it_stands():
    first, other = search_result().best
    switched = replace(first, number=7, recipe=replace(first.recipe, overlap_grad_reduce=False))
    found = search_result(best=(first, switched, other))
    text = as_text(search_report(found, job_of, None, verbosity="verbose"))
    numbered = [line.split()[:2] for line in text.splitlines() if re.match(r"\d ", line)]
    tracked = search_record(
        found,
        Question(MODEL, GPU, CLUSTER, TRAINING),
        settings={},
        group="",
        directory=Path(),
        files=(),
    )
    children = [[each.tags["rank"], each.tags["recipe"].split()[0]] for each in tracked.children]
    assert numbered == children == [["1", "tp4"], ["2", "tp2"]]
