"""A search and a prediction as data: one JSON object, or CSV; nothing that people would read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.reports.evidence import evidence_of
from trainscout.reports.explain import JobOf, why_best
from trainscout.reports.files import claim_record, top_recipes, trial_columns, trial_row
from trainscout.reports.nothing_found import why_nothing_fits
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.io.csv_files import csv_text
from trainscout.simulators.predictor.io.output import json_text
from trainscout.simulators.predictor.memory.bands import FITS, NO, TIGHT
from trainscout.simulators.predictor.question.job import Job


def search_json(
    result: SearchResult,
    shown: Sequence[Trial],
    job_of: JobOf,
    *,
    directory: Path,
    files: Sequence[Path],
    tracked: str | None,
    relief: Sequence[str] = (),
) -> str:
    """One JSON object of a search; ``docs/output.md`` lists its keys.

    Args:
        result: of the search.
        shown: its best recipes, or its front.
        job_of: its jobs.
        directory: where its files are.
        files: those files, below it.
        tracked: where MLflow has it; None: nowhere.
        relief: what would have made a recipe fit, where none did.
    """
    why = own = None
    if shown and len(result.objectives) == 1:
        why = why_best(result, job_of)
        own = claim_record(shown[0], job_of)
    record: dict[str, Any] = {
        "objectives": list(result.objectives),
        "recipes": top_recipes(shown, job_of),
        "claim": own,
        "tight": top_recipes(result.tight, job_of),
        "why_best": why,
        "why_nothing": None if shown else why_nothing_fits(result, job_of).splitlines(),
        "would_fit": list(relief),
        "counts": result.counts(),
        "counts_by_rule": {
            status: result.counts_by_rule(status) for status in ("pruned", "invalid")
        },
        "space_points": result.space_size,
        "stopped": result.stopped,
        "wall_s": result.wall_s,
        "notes": list(result.notes),
        "certificate": None if result.certificate is None else result.certificate.to_dict(),
        "directory": str(directory),
        "files": [path.relative_to(directory).as_posix() for path in files],
        "tracked": tracked,
    }
    return json_text(record)


def search_csv(result: SearchResult, shown: Sequence[Trial], job_of: JobOf) -> str:
    """The recipes shown, a row each: ``rank``, then the columns of ``trials.csv``."""
    rows = [
        {"rank": rank, **trial_row(trial, result.objectives, job_of)}
        for rank, trial in enumerate(shown, start=1)
    ]
    return csv_text(["rank", *trial_columns(shown, result.objectives)], rows)


def prediction_json(prediction: Prediction, job: Job, extra: Mapping[str, Any]) -> str:
    """One JSON object: the prediction, ``evidence`` of its figures, and ``extra``."""
    evidence = evidence_of(prediction, job).of_figures()
    return json_text({**prediction.to_dict(), "evidence": evidence, **extra})


def prediction_csv(prediction: Prediction, job: Job) -> str:
    """One row: ``prediction_row``."""
    row = prediction_row(prediction, job)
    return csv_text(row, [row])


def prediction_row(prediction: Prediction, job: Job) -> dict[str, Any]:
    """The columns of ``trials.csv`` that a prediction fills."""
    status = {FITS: "ok", TIGHT: "tight", NO: "oom"}[prediction.memory.band]
    trial = Trial(0, {}, job.recipe, status, prediction=prediction)
    row = trial_row(trial, (), lambda _: job)
    left_out = ("number", "rule", "reason", "duration_s")
    return {name: row.get(name) for name in trial_columns([trial], ()) if name not in left_out}
