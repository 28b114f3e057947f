"""What people read of a capacity study."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.planning.fakes import SETTINGS, STUDY, answer, cell, declarations, point
from trainscout.planning.answer import Answer
from trainscout.planning.changes import Change
from trainscout.planning.goodput import Reliability
from trainscout.planning.outcome import CellResult, StudyOutcome, run_study
from trainscout.planning.scaling import scaling_curves
from trainscout.planning.store import AnswerStore
from trainscout.planning.study import Target
from trainscout.reports.capacity.study_files import study_record
from trainscout.reports.capacity.terminal_tables import (
    changes_report,
    format_answer,
    format_bend,
    format_clusters,
    format_goodput,
    format_target,
    study_report,
)
from trainscout.simulators.predictor.io.terminal import as_text
from trainscout.simulators.predictor.uncertainty.calibration import CALIBRATED

FAILING = Reliability(1e5, None, 30.0, 60.0, 300.0, source="made up")


def outcome_of(tmp_path, targets, step_s=lambda cell: 16 / cell.num_gpus) -> StudyOutcome:
    study = replace(STUDY, clusters=("here", "there"), targets=targets)
    return run_study(
        study,
        declarations(),
        FAILING,
        AnswerStore(tmp_path, SETTINGS),
        lambda asked: answer(step_s(asked)),
        n_jobs=1,
        on_progress=lambda _: None,
    )


def report_of(outcome, reliability, found, verbosity):
    record = study_record(outcome, started="today", commit="abc", groups={})
    there = Path("there")
    return study_report(outcome, record, reliability, found, there, verbosity=verbosity)


def test_the_report_has_the_answer_first_and_then_its_tables(tmp_path):
    outcome = outcome_of(tmp_path, {"fits": Target(), "soon": Target(days=50)})
    short, text = (
        as_text(report_of(outcome, FAILING, [], each)) for each in ("normal", "verbose")
    )
    assert len(short.splitlines()) <= 30
    assert "What if" not in short
    first = text.splitlines()[0]
    assert first.startswith("small, 1 T tokens: the cheapest cluster that meets every target is")
    for words in (
        "GPUs, days, dollars",
        "Targets",
        "Scaling",
        "What if, for",
        "Break-even",
        "Since the last run: nothing changed.",
        "Days: with failures",
        " a GPU-hour of ",
        "Files: there",
    ):
        assert words in text
    assert all(len(line) <= 120 for line in text.splitlines())


def test_a_claim_beyond_what_was_published_is_said_once_a_cluster(tmp_path):
    outcome = outcome_of(tmp_path, {})
    record = study_record(outcome, started="today", commit=None, groups={})
    assert not any(cell["measure_first"] for cell in record["cells"])  # nothing like it ran
    words = "the best published run reaches 10.0 % MFU, this claims"
    cells = [
        {**cell, "mfu": share, "measure_first": words if cell["cluster"] == "here" else None}
        for share, cell in zip((0.4, 0.6, 0.5, 0.4, 0.4, 0.4), record["cells"], strict=True)
    ]
    bold = study_report(
        outcome, {**record, "cells": cells}, FAILING, None, None, verbosity="normal"
    )
    stated = [line for line in as_text(bold).splitlines() if "Measure first" in line]
    assert stated == [f"Measure first on here: {words} with 16 GPUs."]


def test_what_clusters_are_calibrated_by_is_said(tmp_path):
    outcome = outcome_of(tmp_path, {})
    assert "calibrated" not in as_text(report_of(outcome, FAILING, None, "normal"))
    first = outcome.results[0]
    known = f"{CALIBRATED} on 5 runs: whole steps x 1.2"
    best = replace(first.answer.best, assumptions=("a flat network", known))
    own = replace(first, answer=replace(first.answer, best=best))
    outcome = replace(outcome, results=(own, *outcome.results[1:]))
    text = as_text(report_of(outcome, FAILING, None, "normal"))
    assert f"On {own.cell.cluster}: {known}." in text.splitlines()


def test_what_of_networks_is_counted_is_said_once_for_alike_clusters(tmp_path):
    outcome = outcome_of(tmp_path, {})
    first = outcome.results[0]
    half = replace(first.cell.question.cluster, num_nodes=2, oversubscription=None)
    own = replace(first.cell, question=replace(first.cell.question, cluster=half))
    results = [replace(first, cell=replace(own, cluster=name)) for name in ("ours", "theirs")]
    lines = format_clusters(replace(outcome, results=tuple(results)))
    assert [line.partition(":")[0] for line in lines[:1]] == ["On ours, theirs"]
    assert lines[1:] == ["sweep.oversubscription=[null,1] shows what such a network may be worth."]
    assert format_clusters(outcome) == []


def test_an_unmet_target_is_said(tmp_path):
    outcome = outcome_of(tmp_path, {"never": Target(days=0.001)})
    words = format_answer(outcome.models[0], outcome)
    assert "no cluster meets never (<= 0.001 days). The cheapest that fits is" in words


def test_targets_that_exclude_each_other_are_said(tmp_path):
    outcome = outcome_of(tmp_path, {"soon": Target(days=50), "small": Target(gpus=8)})
    words = format_answer(outcome.models[0], outcome)
    assert "no one cluster meets all targets at once" in words


def test_nothing_fits_is_said_with_its_reason(tmp_path):
    outcome = outcome_of(tmp_path, {})
    nothing = CellResult(cell(), Answer("nothing_fits"), None, "No recipe fits\nClosest miss: x")
    empty = replace(outcome.models[0], points=(), front=(), chosen=None, curves=(), effects=())
    outcome = replace(outcome, results=(nothing,), models=(empty,))
    text = as_text(report_of(outcome, Reliability(), None, "normal"))
    assert "nothing fits on any cluster" in text
    assert "Closest miss: x" in text
    assert "No recipe fits" not in text
    assert "as if nothing ever fails" in text


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Target(), "fits"),
        (Target(days=30), "<= 30 days"),
        (Target(days=30, usd=2e6, gpus=512), "<= 30 days, <= $2 M, <= 512 GPUs"),
    ],
)
def test_limits_in_words(target, words):
    assert format_target(target) == words


def test_a_bend_names_the_part_and_the_batch():
    (curve,) = scaling_curves(
        [point(16), point(32, 0.7, pp=4, micro_batches=8, compute=0.5, bubble=0.2)]
    )
    assert [format_bend(size) for size in curve.points] == [
        "",
        "bubble (100% of it); batch limit: 8 micro-batches a replica for 4 stages",
    ]


def test_changes_are_a_table_and_the_rest_is_counted():
    found = [Change("usd", f"cell {number}", "10", "12", 0.2) for number in range(30)]
    text = as_text(changes_report(found, 20))
    assert "Since the last run: 30 changes" in text
    assert "(+20.0%)" in text
    assert "10 more in changes.json" in text


@pytest.mark.parametrize(
    ("reliability", "words"),
    [
        (Reliability(), "Days: as if nothing ever fails and checkpoints are free (goodput="),
        (
            Reliability(checkpoint_write_s=60, checkpoint_interval_s=600),
            "Days: as if nothing ever fails, with a checkpoint of 60 s after every 600 s of work",
        ),
        (Reliability(1e5, None, 30.0), "Days: with failures, checkpoints and restarts. 32 GPUs"),
        (FAILING, "Days: with failures, checkpoints and restarts (made up). 32 GPUs"),
    ],
)
def test_days_say_what_they_take_for_granted(tmp_path, reliability, words):
    assert format_goodput(outcome_of(tmp_path, {}), reliability).startswith(words)


def test_days_with_failures_are_said_where_nothing_fits(tmp_path):
    outcome = replace(outcome_of(tmp_path, {}), models=())
    stated = format_goodput(outcome, FAILING)
    assert stated == "Days: with failures, checkpoints and restarts (made up)."
