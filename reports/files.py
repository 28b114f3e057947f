"""The files a search leaves behind, each written whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.reports.error_bars import tie_shares
from trainscout.reports.evidence import evidence_of
from trainscout.reports.explain import JobOf
from trainscout.reports.launch.directory import start_script
from trainscout.reports.trials import predicted
from trainscout.reports.verification import verification_json
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.io.csv_files import csv_text
from trainscout.simulators.predictor.io.output import json_text, write_texts
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.uncertainty.fastest import claim
from trainscout.simulators.virtual_cluster.traced.verification import Verification

TOP_RECIPES = "top_recipes.json"
TRIALS = "trials.csv"
LAUNCH = "launch.sh"
REPORT = "report.txt"
CERTIFICATE = "certificate.json"
VERIFICATION = "verification.json"

_RECIPE_FIELDS = tuple(field.name for field in fields(Recipe))
_PREDICTION_FIELDS = tuple(
    field.name
    for field in fields(Prediction)
    if field.name
    not in (
        "memory",
        "breakdown_s",
        "evidence_share",
        "estimated_operations",
        "assumptions",
        "interval_s",
    )
)
_MEMORY_FIELDS = (
    *("peak_allocated_bytes", "peak_reserved_bytes", "needed_bytes", "headroom_bytes"),
    *("fit_probability", "band", "worst_stage"),
)


def recipe_dict(recipe: Recipe, job_of: JobOf) -> dict[str, Any]:
    """The recipe's fields, with the ``dp`` that follows from them."""
    return {**asdict(recipe), "dp": job_of(recipe).dp}


def top_recipes(trials: Sequence[Trial], job_of: JobOf) -> list[dict[str, Any]]:
    """Best first, ``recipe``, ``prediction``, ``evidence`` (``reports.evidence``) and
    ``tie_share``: the lead, as a share of a step, below which the recipe cannot be distinguished
    from the first one (``reports.error_bars``).
    """
    return [
        {
            "recipe": recipe_dict(t.recipe, job_of),
            "prediction": t.prediction.to_dict(),
            "evidence": evidence_of(t.prediction, job_of(t.recipe)).of_figures(),
            "tie_share": share,
        }
        for t, share in zip(trials, tie_shares(trials, job_of), strict=True)
        if t.prediction is not None
    ]


def top_recipes_json(trials: Sequence[Trial], job_of: JobOf) -> str:
    """``top_recipes`` as a JSON list."""
    return json_text(top_recipes(trials, job_of))


def trial_columns(trials: Sequence[Trial], objectives: tuple[str, ...]) -> list[str]:
    """Columns of a table of trials: number, status, rule, reason, duration_s, objective.<name>,
    the recipe's fields and dp, the prediction's scalars, the job's memory, and
    breakdown_s.<part>."""
    parts = sorted({p for t in trials if t.prediction for p in t.prediction.breakdown_s})
    columns = ["number", "status", "rule", "reason", "duration_s"]
    columns += [f"objective.{name}" for name in objectives]
    columns += [*_RECIPE_FIELDS, "dp", *_PREDICTION_FIELDS]
    columns += ["interval_low_s", "interval_high_s", *_MEMORY_FIELDS]
    return columns + [f"breakdown_s.{part}" for part in parts]


def trials_csv(result: SearchResult, job_of: JobOf) -> str:
    """One row per distinct point; empty cells where a trial has no such value."""
    objectives = result.objectives
    rows = (trial_row(trial, objectives, job_of) for trial in result.trials)
    return csv_text(trial_columns(result.trials, objectives), rows)


def trial_row(trial: Trial, objectives: tuple[str, ...], job_of: JobOf) -> dict[str, Any]:
    """The cells of one trial that it has a value for, by column."""
    row: dict[str, Any] = {
        "number": trial.number,
        "status": trial.status,
        "rule": trial.rule,
        "reason": trial.reason,
        "duration_s": trial.duration_s,
        **asdict(trial.recipe),
    }
    if trial.values is not None:
        row |= {f"objective.{n}": v for n, v in zip(objectives, trial.values, strict=True)}
    # The degrees of an invalid recipe may not divide the cluster: it has no dp.
    if trial.status != "invalid":
        row["dp"] = job_of(trial.recipe).dp
    prediction = trial.prediction
    if prediction is not None:
        row |= {name: getattr(prediction, name) for name in _PREDICTION_FIELDS}
        if prediction.interval_s is not None:
            row["interval_low_s"], row["interval_high_s"] = prediction.interval_s
        row |= {name: getattr(prediction.memory, name) for name in _MEMORY_FIELDS}
        row |= {f"breakdown_s.{part}": s for part, s in prediction.breakdown_s.items()}
    return row


def claim_record(best: Trial, job_of: JobOf) -> dict[str, Any]:
    """What the best of a search claims beside what was published, as data."""
    own = claim(job_of(best.recipe), predicted(best).mfu)
    return {**asdict(own), "faster": own.faster, "measure_first": own.measure_first}


def save_search(
    directory: Path,
    result: SearchResult,
    shown: Sequence[Trial],
    job_of: JobOf,
    report: str,
    checks: Sequence[Verification] = (),
    launch_directory: str | None = None,
) -> list[Path]:
    """Write the files of a search into an existing directory; returns their paths.

    ``launch.sh`` runs the best recipe under Megatron-LM, or by the files in ``launch_directory``
    under another framework that it names; there is none when nothing fits, or nothing that is
    written for runs it. An exact search also leaves its ``certificate.json``, and a verified one
    its ``verification.json``."""
    texts = {
        TOP_RECIPES: top_recipes_json(shown, job_of),
        TRIALS: trials_csv(result, job_of),
        REPORT: report,
    }
    if result.certificate is not None:
        single = shown and len(result.objectives) == 1
        own = claim_record(shown[0], job_of) if single else None
        record = {**result.certificate.to_dict(), "claim": own}
        texts[CERTIFICATE] = json_text(record)
    if checks:
        texts[VERIFICATION] = verification_json(checks)
    if shown:
        script = start_script(job_of(shown[0].recipe), launch_directory)
        if script is not None:
            texts[LAUNCH] = script
    return write_texts(directory, texts)
