"""What tracing found, as a table, a file and metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.samples import CLUSTER, GIB, GPU, MODEL, TRAINING, job_of, search_result
from trainscout.reports.files import save_search
from trainscout.reports.terminal_tables import search_report
from trainscout.reports.tracker_runs import search_record
from trainscout.reports.verification import verification_metrics, verification_report
from trainscout.simulators.predictor.io.terminal import as_text
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.virtual_cluster.traced.verification import (
    RankCheck,
    RankFigures,
    Verification,
)

FIGURES = RankFigures(
    40 * GIB, 42 * GIB, 3 * GIB, 312_000_000_000_000, {"tp": 57_000_000, "model": 4}
)
TRACED = replace(
    FIGURES, peak_allocated_bytes=41 * GIB, communicated_bytes={"tp": 57_000_000, "world": 4}
)
RANKS = tuple(
    RankCheck(8 * stage, stage, FIGURES, TRACED, ("only traced: 1 x all_reduce world 4",) * 5)
    for stage in range(6)
)
BEST = search_result().best[0].recipe
CHECK = Verification(
    BEST,
    4,
    16,
    1.25,
    1.3125,
    {"compute": 1.0, "bubble": 0.25},
    {"compute": 1.0625, "bubble": 0.25},
    RANKS,
    None,
    ("traced, it fits in memory",),
)
PROBLEM = Verification(Recipe(tp=2, pp=4), 4, 16, problem="rank 0: ValueError: no")


def test_both_sources_stand_side_by_side() -> None:
    text = as_text(verification_report([CHECK], job_of))
    lines = {line.strip().split("  ")[0]: line for line in text.splitlines()}
    assert "1.250 s" in lines["step of 4 micro-batches (of 16)"]
    assert "+5.00%" in lines["step of 4 micro-batches (of 16)"]
    assert "+6.25%" in lines["compute"]
    assert lines["bubble"].endswith("equal")
    assert "+2.50%" in lines["peak allocated"]
    assert lines["parameters"].endswith("equal")
    assert "312.00 TFLOP" in lines["matrix products"]
    assert lines["communicated, tp"].endswith("equal")
    assert lines["communicated, world"].endswith("only traced")
    assert "and 2 more" in text


def test_three_ranks_are_shown_and_all_are_kept() -> None:
    text = as_text(verification_report([CHECK], job_of))
    assert [stage for stage in range(6) if f"stage {stage}" in text] == [0, 3, 5]


def test_a_problem_is_said() -> None:
    text = as_text(verification_report([CHECK, PROBLEM], job_of))
    assert "Verified #2: tp2 pp4" in text
    assert "not verified: rank 0: ValueError: no" in text


def test_report_and_files_hold_it(tmp_path: Path) -> None:
    result, checks = search_result(), [CHECK, PROBLEM]
    report = as_text(search_report(result, job_of, tmp_path, checks))
    assert "Verified #1" in report
    files = save_search(tmp_path, result, result.best, job_of, report, checks)
    assert tmp_path / "verification.json" in files
    kept = json.loads((tmp_path / "verification.json").read_text())
    assert len(kept[0]["ranks"]) == 6
    assert kept[0]["ranks"][0]["traced"]["communicated_bytes"]["world"] == 4
    assert kept[1]["problem"].startswith("rank 0")


def test_nothing_is_left_of_a_search_that_was_not_verified(tmp_path: Path) -> None:
    result = search_result()
    files = save_search(tmp_path, result, result.best, job_of, "report")
    assert tmp_path / "verification.json" not in files


def test_child_runs_have_what_was_found(tmp_path: Path) -> None:
    from trainscout.simulators.predictor.question.question import Question

    result = search_result()
    record = search_record(
        result,
        Question(MODEL, GPU, CLUSTER, TRAINING),
        settings={},
        group="group",
        directory=tmp_path,
        files=[],
        checks=[CHECK, PROBLEM],
    )
    traced = [
        {name: value for name, value in child.metrics.items() if name.startswith("verified/")}
        for child in record.children
    ]
    assert traced == [verification_metrics(CHECK), {}]
    assert traced[0]["verified/traced_step_s"] == 1.3125
    assert verification_metrics(CHECK)["verified/traced_peak_allocated_gib"] == 41
    assert verification_metrics(PROBLEM) == {}
