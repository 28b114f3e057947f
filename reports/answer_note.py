"""The answer of a search in Markdown: what MLflow shows as the description of its run."""

from __future__ import annotations

from collections.abc import Sequence

from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.reports.error_bars import format_distinguishable
from trainscout.reports.explain import JobOf, why_best
from trainscout.reports.nothing_found import why_nothing_fits
from trainscout.reports.trials import predicted
from trainscout.reports.wording import (
    format_percent,
    format_question,
    format_recipe,
    format_seconds,
    format_usd,
)

_ROWS = 10


def search_note(result: SearchResult, shown: Sequence[Trial], job_of: JobOf) -> str:
    """What to run, a table of the recipes shown, why and how sure; or why nothing fits.

    Args:
        result: the search's.
        shown: its recipes worth a row, best first.
        job_of: the job of a recipe.
    """
    if not shown:
        return "**No recipe fits.**\n\n" + _quoted(why_nothing_fits(result, job_of))
    best = predicted(shown[0])
    job = job_of(shown[0].recipe)
    step = format_seconds(best.step_time_s)
    if best.interval_s is not None:
        step += f" ({' to '.join(map(format_seconds, best.interval_s))})"
    # MLflow folds what is beyond the first lines.
    parts = [
        f"Run **{format_recipe(job.recipe, job.dp)}**: {step} a step, "
        f"MFU {format_percent(best.mfu)}, {format_usd(best.cost_of_run_usd)}.",
        f"{format_question(job)}.",
        _table(shown, job_of),
    ]
    if len(result.objectives) == 1:
        parts.append(f"**Why #1:** {why_best(result, job_of)}")
        distinguishable = format_distinguishable(shown, job_of)
        if distinguishable is not None:
            parts.append(f"**How sure:** {distinguishable}.")
    return "\n\n".join(parts)


def _table(shown: Sequence[Trial], job_of: JobOf) -> str:
    lines = ["| # | recipe | step | MFU | GiB | run |", "|---:|---|---:|---:|---:|---:|"]
    for rank, trial in enumerate(shown[:_ROWS], start=1):
        prediction = predicted(trial)
        cells = (
            str(rank),
            format_recipe(trial.recipe, job_of(trial.recipe).dp),
            format_seconds(prediction.step_time_s),
            format_percent(prediction.mfu),
            f"{prediction.memory.needed_bytes / 2**30:.1f}",
            format_usd(prediction.cost_of_run_usd),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())
