"""What a search and a prediction look like on a terminal and in a text file."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from optimizer.trial import SearchResult, Trial
from reports.error_bars import error_bar_words, told_apart_words
from reports.explain import JobOf, why_best, why_nothing_fits
from reports.files import LAUNCH
from reports.launch import megatron_launch
from reports.proof import proof_words
from reports.verification import verification_report
from reports.wording import (
    gib_words,
    long_time_words,
    part_words,
    percent_words,
    question_words,
    recipe_words,
    seconds_words,
    tokens_words,
    usd_words,
)
from simulators.job import Job
from simulators.prediction import Prediction
from simulators.traced.verification import Verification

_STOP_WORDS = {
    "n_trials": "every trial asked for was spent",
    "converged": "the top recipes stopped changing",
    "space_exhausted": "the whole space was looked at",
    "proved": "nothing left can be among the best",
    "interrupted": "it was interrupted",
    "timeout": "its time was up",
}


def shown_trials(result: SearchResult, top_k: int) -> tuple[Trial, ...]:
    """The trials people are shown: the best K, or every Pareto one for several objectives."""
    return result.pareto if len(result.objectives) > 1 else result.best[:top_k]


def search_report(
    result: SearchResult,
    job_of: JobOf,
    top_k: int,
    directory: Path,
    checks: Sequence[Verification] = (),
) -> RenderableType:
    """The whole report of a search: table, what tracing ``checks`` found, why, how sure, trial
    counts, files."""
    shown = shown_trials(result, top_k)
    parts: list[RenderableType] = []
    if shown:
        job = job_of(shown[0].recipe)
        parts += [_recipes_table(shown, result.objectives, job_of), Text()]
        parts.append(verification_report(checks, job_of))
        if len(result.objectives) == 1:
            parts.append(_labelled("Why #1", why_best(result.best, job_of)))
            told_apart = told_apart_words(shown, job_of)
            if told_apart is not None:
                parts.append(_labelled("How sure", told_apart))
        parts += _prediction_notes(_predicted(shown[0]), job, "#1")
        parts.append(_labelled("Launch #1", _launch_words(job)))
    else:
        parts.append(Text(why_nothing_fits(result, job_of)))
    parts += [_labelled("Trials", _counts_words(result))]
    if result.certificate is not None:
        parts.append(_labelled("Proof", proof_words(result.certificate)))
    parts += [_labelled("Note", note) for note in result.notes]
    parts.append(_labelled("Files", str(directory)))
    return Group(*parts)


def prediction_report(prediction: Prediction, job: Job) -> RenderableType:
    """One recipe's prediction: totals, where the time goes, memory by stage."""
    totals = Table.grid(padding=(0, 2))
    for name, value in (
        ("recipe", recipe_words(job.recipe, job.dp)),
        ("step time", seconds_words(prediction.step_time_s)),
        ("MFU / HFU", f"{percent_words(prediction.mfu)} / {percent_words(prediction.hfu)}"),
        ("throughput", f"{prediction.tokens_per_s:,.0f} tokens/s"),
        ("per GPU", f"{prediction.tokens_per_s_per_gpu:,.0f} tokens/s"),
        (
            "cost",
            f"{usd_words(prediction.cost_per_step_usd)} per step, "
            f"{usd_words(prediction.cost_per_billion_tokens_usd)} per billion tokens",
        ),
        ("memory", _fit_words(prediction)),
    ):
        totals.add_row(name, value)
    notes = _prediction_notes(prediction, job, "this recipe")
    return Group(
        Text(question_words(job), style="bold"),
        Text(),
        totals,
        Text(),
        _breakdown_table(prediction),
        Text(),
        _memory_table(prediction),
        Text(),
        *notes,
    )


def _recipes_table(
    trials: Sequence[Trial], objectives: tuple[str, ...], job_of: JobOf
) -> RenderableType:
    job = job_of(trials[0].recipe)
    pareto = len(objectives) > 1
    title = "Pareto-optimal recipes" if pareto else "Best recipes"
    table = Table(
        title=f"{title}: {question_words(job)}", title_justify="left", box=None, pad_edge=False
    )
    predictions = [_predicted(trial) for trial in trials]
    digits = _digits(min(prediction.step_time_s for prediction in predictions))
    table.add_column("#", justify="right")
    table.add_column("recipe")
    # Units in the heading keep the rows narrow enough for an 80-column terminal.
    for name, unit in (
        ("step", "s"),
        ("MFU", "%"),
        ("tokens/s", "per GPU"),
        ("memory", "GiB"),
        ("headroom", "GiB"),
        ("cost", "$/B tok"),
    ):
        table.add_column(f"{name}\n{unit}", justify="right")
    for rank, (trial, prediction) in enumerate(zip(trials, predictions, strict=True), start=1):
        table.add_row(
            str(rank),
            recipe_words(trial.recipe, job_of(trial.recipe).dp),
            f"{prediction.step_time_s:.{digits}f}",
            f"{prediction.mfu * 100:.1f}",
            f"{prediction.tokens_per_s_per_gpu:,.0f}",
            f"{prediction.memory.peak_reserved_bytes / 2**30:.1f}",
            f"{prediction.memory.headroom_bytes / 2**30:.1f}",
            f"{prediction.cost_per_billion_tokens_usd:,.0f}",
            style="bold" if rank == 1 and not pareto else None,
        )
    return table


def _predicted(trial: Trial) -> Prediction:
    if trial.prediction is None:
        raise ValueError(f"trial {trial.number} has no prediction")
    return trial.prediction


def _digits(seconds: float) -> int:
    """Decimals that show four significant digits."""
    return max(0, 3 - math.floor(math.log10(seconds)))


def _prediction_notes(prediction: Prediction, job: Job, name: str) -> list[RenderableType]:
    tokens, price = job.training.tokens, job.gpu.price_usd_per_hour
    run = (
        f"{tokens_words(tokens)} take {name} {long_time_words(tokens / prediction.tokens_per_s)}"
        f" and {usd_words(prediction.cost_of_run_usd)}, at an assumed {usd_words(price)} per"
        " GPU-hour (gpu.price_usd_per_hour=)"
    )
    shares = ", ".join(
        f"{percent_words(share)} {kind}" for kind, share in prediction.evidence_share.items()
    )
    notes: list[RenderableType] = [
        _labelled("Run", run),
        _labelled("Error bar", error_bar_words(prediction)),
        _labelled("Evidence", f"time priced from {shares}"),
    ]
    if prediction.estimated_operations:
        only = ", ".join(prediction.estimated_operations)
        notes.append(_labelled("Only estimated", only))
    if prediction.assumptions:
        notes.append(_labelled("Assumed", "; ".join(prediction.assumptions)))
    return notes


def _fit_words(prediction: Prediction) -> str:
    memory = prediction.memory
    used = (
        f"{gib_words(memory.peak_reserved_bytes)} of {gib_words(memory.capacity_bytes)} usable"
        f" on stage {memory.worst_stage}"
    )
    if prediction.fits:
        return f"fits: {used}, {gib_words(memory.headroom_bytes)} headroom"
    return f"does not fit: {used}, {gib_words(-memory.headroom_bytes)} too much"


def _breakdown_table(prediction: Prediction) -> Table:
    table = Table(title="Where the step goes", title_justify="left", box=None)
    table.add_column("part")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    for part, seconds in sorted(prediction.breakdown_s.items(), key=lambda item: -item[1]):
        if seconds:
            share = percent_words(seconds / prediction.step_time_s)
            table.add_row(part_words(part), seconds_words(seconds), share)
    return table


def _memory_table(prediction: Prediction) -> Table:
    stages = prediction.memory.per_stage
    kinds = list(dict.fromkeys(kind for stage in stages for kind in stage.kind))
    table = Table(title="Memory by pipeline stage, GiB", title_justify="left", box=None)
    table.add_column("stage", justify="right")
    for kind in [*kinds, "peak allocated", "peak reserved"]:
        table.add_column(kind.replace("_", " "), justify="right")
    for stage in stages:
        figures = [stage.kind.get(kind, 0) for kind in kinds]
        figures += [stage.peak_allocated_bytes, stage.peak_reserved_bytes]
        table.add_row(str(stage.stage), *(f"{figure / 2**30:.2f}" for figure in figures))
    return table


def _counts_words(result: SearchResult) -> str:
    counts = result.counts()
    words = [f"{counts['ok']} simulated and fit", f"{counts['oom']} out of memory"]
    for status in ("pruned", "invalid"):
        rules = sorted(result.counts_by_rule(status).items(), key=lambda item: -item[1])
        by_rule = ", ".join(f"{rule} {count}" for rule, count in rules)
        words.append(f"{counts[status]} {status}" + (f" ({by_rule})" if by_rule else ""))
    words.append(f"{counts['failed']} failed")
    resumed = f", {result.resumed_trials} of them resumed" if result.resumed_trials else ""
    return (
        f"{len(result.trials):,} points asked{resumed}: "
        + "; ".join(words)
        + f". {result.wall_s:.1f} s; ended because {_STOP_WORDS[result.stopped]}."
    )


def _launch_words(job: Job) -> str:
    launch = megatron_launch(job)
    words = f"Megatron-LM, whole command in {LAUNCH}: " + " ".join(
        shlex.join(option) for option in launch.arguments
    )
    if launch.lacking:
        words += ". Megatron-LM cannot express: " + "; ".join(launch.lacking)
    return words


def _labelled(label: str, text: str) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    grid.add_row(f"{label}:", text)
    return grid
