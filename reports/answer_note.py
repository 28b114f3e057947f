"""The answer of a search in Markdown: what MLflow shows as the description of its run."""

from __future__ import annotations

from collections.abc import Sequence

from optimizer.trial import SearchResult, Trial
from reports.error_bars import told_apart_words
from reports.explain import JobOf, why_best
from reports.nothing_found import why_nothing_fits
from reports.trials import predicted
from reports.wording import percent_words, question_words, recipe_words, seconds_words, usd_words

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
    step = seconds_words(best.step_time_s)
    if best.interval_s is not None:
        step += f" ({' to '.join(map(seconds_words, best.interval_s))})"
    # MLflow folds what is beyond the first lines.
    parts = [
        f"Run **{recipe_words(job.recipe, job.dp)}**: {step} a step, "
        f"MFU {percent_words(best.mfu)}, {usd_words(best.cost_of_run_usd)}.",
        f"{question_words(job)}.",
        _table(shown, job_of),
    ]
    if len(result.objectives) == 1:
        parts.append(f"**Why #1:** {why_best(result, job_of)}")
        told_apart = told_apart_words(shown, job_of)
        if told_apart is not None:
            parts.append(f"**How sure:** {told_apart}.")
    return "\n\n".join(parts)


def _table(shown: Sequence[Trial], job_of: JobOf) -> str:
    lines = ["| # | recipe | step | MFU | GiB | run |", "|---:|---|---:|---:|---:|---:|"]
    for rank, trial in enumerate(shown[:_ROWS], start=1):
        prediction = predicted(trial)
        cells = (
            str(rank),
            recipe_words(trial.recipe, job_of(trial.recipe).dp),
            seconds_words(prediction.step_time_s),
            percent_words(prediction.mfu),
            f"{prediction.memory.peak_reserved_bytes / 2**30:.1f}",
            usd_words(prediction.cost_of_run_usd),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())
