"""A finished search as the runs that a tracker keeps (docs/mlflow.md)."""

from __future__ import annotations

import importlib.metadata
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainscout.optimizer.tracking import metrics
from trainscout.optimizer.tracking.spool import Run, RunTree, make_run
from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.reports import wording
from trainscout.reports.error_bars import format_distinguishable
from trainscout.reports.explain import JobOf, why_best
from trainscout.reports.files import recipe_dict
from trainscout.reports.nothing_found import why_nothing_fits
from trainscout.reports.trials import decided_between, predicted
from trainscout.reports.verification import verification_metrics
from trainscout.reports.whole_network import network_note
from trainscout.simulators.predictor.io.markdown import table
from trainscout.simulators.predictor.io.output import fingerprint
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.uncertainty.fabric import counted_share
from trainscout.simulators.virtual_cluster.traced.verification import Verification

NOTE = "mlflow.note.content"
"""Tag that MLflow shows as a run's description."""


def search_record(
    result: SearchResult,
    question: Question,
    *,
    settings: Mapping[str, Any],
    group: str,
    directory: Path,
    files: Sequence[Path],
    checks: Sequence[Verification] = (),
) -> RunTree:
    """What to track: the recipes that the report compares, ranked as there, and what was traced
    (``checks``) become child runs.

    ``settings`` is the whole configuration as plain values; ``group`` names the searches that
    belong together; ``directory`` is the search's, and has the ``files``.
    """
    shown = decided_between(result)
    traced = {check.recipe: verification_metrics(check) for check in checks}
    kept = (*shown, *result.pareto)
    tags = {**_question_tags(question, settings), "group": group, "stopped": result.stopped}
    tags |= code_tags("trainscout optimize")
    ended_ms = int(time.time() * 1000)
    parent = make_run(
        f"{question.model.name} on {question.cluster.name}, {question.cluster.num_gpus} GPUs",
        ended_ms - int(result.wall_s * 1000),
        ended_ms,
        params={**size_params(question), **metrics.flat_params(settings)},
        metrics=metrics.search_metrics(result),
        series=metrics.best_so_far(result),
        tags={
            **tags,
            "kind": "search",
            "status": "fits" if shown else "nothing_fits",
            "recipe": _format_recipe(shown[0], question) if shown else None,
            NOTE: search_note(result, shown, question.job),
        },
    )
    front = {trial.number for trial in result.pareto}
    children = []
    for rank, trial in enumerate({each.number: each for each in kept}.values(), start=1):
        own = {"rank": rank, "trial": trial.number, "pareto": str(trial.number in front).lower()}
        more = traced.get(trial.recipe, {})
        children.append(_recipe_run(trial, question, ended_ms, {**tags, **own}, more))
    return RunTree(
        parent,
        tuple(children),
        directory,
        tuple(files),
        "KILLED" if result.stopped == "interrupted" else "FINISHED",
    )


def _recipe_run(
    trial: Trial,
    question: Question,
    ended_ms: int,
    tags: Mapping[str, Any],
    more: Mapping[str, float],
) -> Run:
    if trial.prediction is None:
        raise ValueError(f"trial {trial.number} was not simulated")
    words = _format_recipe(trial, question)
    return make_run(
        f"#{tags['rank']} {words}",
        ended_ms - int(trial.duration_s * 1000),
        ended_ms,
        params={**size_params(question), **recipe_dict(trial.recipe, question.job)},
        metrics={**metrics.prediction_metrics(trial.prediction), **more},
        tags={**tags, "kind": "recipe", "status": "fits", "recipe": words},
    )


def _format_recipe(trial: Trial, question: Question) -> str:
    return wording.format_recipe(trial.recipe, question.job(trial.recipe).dp)


def size_params(question: Question) -> dict[str, Any]:
    """What distinguishes two questions of one model and cluster, under short names."""
    training = question.training
    return {
        "num_gpus": question.cluster.num_gpus,
        "global_batch_size": training.global_batch_size,
        "sequence_length": training.sequence_length or question.model.sequence_length,
        **({"network": "unvalidated"} if counted_share(question.cluster) < 1 else {}),
        **({"lora_rank": training.lora.rank} if training.lora is not None else {}),
        **({"dpo": True} if training.dpo is not None else {}),
        **({"teacher": taught.teacher.name} if (taught := training.distillation) else {}),
        **({"frozen": ",".join(training.frozen)} if training.frozen else {}),
        **{f"{module}_precision": own for module, own in training.module_precision.stated},
    }


def _question_tags(question: Question, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": question.model.name,
        "cluster": question.cluster.name,
        "gpu": question.gpu.name,
        "framework": ",".join(each.name for each in question.framework.offered),
        **settings_tags(settings),
        "objective": ",".join(settings.get("objective", {}).get("names", ())) or None,
    }


def settings_tags(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a whole configuration chooses of the groups that searches have."""
    fields = {"simulator": "name", "network": "engine", "space": "name", "search": "sampler"}
    chosen = {group: settings.get(group, {}).get(field) for group, field in fields.items()}
    sampler = chosen.pop("search")
    more = {"seed": settings.get("seed"), "config_hash": fingerprint(settings)}
    return {**chosen, "sampler": sampler, **more}


def code_tags(command: str) -> dict[str, Any]:
    """Which code answered: the command, Trainscout's version, and its commit when known."""
    return {
        "mlflow.source.name": command,
        "mlflow.source.git.commit": git_commit(Path(__file__).parent),
        "version": product_version(),
    }


def product_version() -> str | None:
    """The version installed; None where it runs from a checkout that is not."""
    try:
        return importlib.metadata.version("trainscout")
    except importlib.metadata.PackageNotFoundError:
        return None


def git_commit(directory: Path) -> str | None:
    """The commit checked out at ``directory``; None outside a repository or without git."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=directory,
            capture_output=True,
            encoding="utf-8",
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() if found.returncode == 0 else None


_ROWS = 10


def search_note(result: SearchResult, shown: Sequence[Trial], job_of: JobOf) -> str:
    """What to run, a table of the recipes shown, why and how sure; or why nothing fits.

    Args:
        result: the search's.
        shown: its recipes worth a row, best first.
        job_of: the job of a recipe.
    """
    if not shown:
        lines = why_nothing_fits(result, job_of).splitlines()
        return "\n".join(["**No recipe fits.**\n", *(f"> {line}" for line in lines)])
    best = predicted(shown[0])
    job = job_of(shown[0].recipe)
    step = wording.format_seconds(best.step_time_s)
    if best.interval_s is not None:
        step += f" ({' to '.join(map(wording.format_seconds, best.interval_s))})"
    # MLflow folds what is beyond the first lines.
    parts = [
        f"Run **{wording.format_recipe(job.recipe, job.dp)}**: {step} a step, "
        f"MFU {wording.format_percent(best.mfu)}, {wording.format_usd(best.cost_of_run_usd)}.",
        f"{wording.format_question(job)}.",
        _table(shown, job_of),
    ]
    if len(result.objectives) == 1:
        parts.append(f"**Why #1:** {why_best(result, job_of)}")
        distinguishable = format_distinguishable(shown, job_of)
        if distinguishable is not None:
            parts.append(f"**How sure:** {distinguishable}.")
    between = network_note(result)
    if between is not None:
        parts.append(f"**Network:** {between}.")
    return "\n\n".join(parts)


def _table(shown: Sequence[Trial], job_of: JobOf) -> str:
    rows = []
    for rank, trial in enumerate(shown[:_ROWS], start=1):
        prediction = predicted(trial)
        row = (
            rank,
            wording.format_recipe(trial.recipe, job_of(trial.recipe).dp),
            wording.format_seconds(prediction.step_time_s),
            wording.format_percent(prediction.mfu),
            f"{prediction.memory.needed_bytes / 2**30:.1f}",
            wording.format_usd(prediction.cost_of_run_usd),
        )
        rows.append(row)
    return table(("#", "recipe", "step", "MFU", "GiB", "run"), rows, left=("recipe",))
