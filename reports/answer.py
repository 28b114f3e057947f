"""The figures of one recipe and the table of the best, each with what it rests on."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from trainscout.reports.evidence import Evidence, Grade, evidence_of
from trainscout.reports.wording import (
    format_gib,
    format_long_time,
    format_percent,
    format_recipe,
    format_room,
    format_seconds,
    format_tokens,
    format_usd,
)
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.io.terminal import plain_table
from trainscout.simulators.predictor.memory.bands import FITS, NO, TIGHT
from trainscout.simulators.predictor.question.job import Job

if TYPE_CHECKING:
    from trainscout.optimizer.trial import Trial
    from trainscout.reports.explain import JobOf
    from trainscout.simulators.predictor.uncertainty.fastest import Claim

_VERDICTS = {FITS: "fits", TIGHT: "TIGHT", NO: "does not fit"}
# Below this, recipes and what their figures rest on are worth more than the other columns.
_WIDE = 100
# Grades where a column's figures have different ones.
_MARKS = {Grade.MEASURED: "m", Grade.FITTED: "f", Grade.ESTIMATED: "e", Grade.ASSUMED: "a"}


def figures(prediction: Prediction, job: Job, assumed: Collection[str] = ()) -> Table:
    """What one recipe takes, needs and costs; at the right, what each figure rests on.

    Args:
        prediction: of the job.
        job: asked about.
        assumed: fields of the training that nobody gave.
    """
    evidence = evidence_of(prediction, job)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    table.add_column(style="dim")
    table.add_row("recipe", Text(format_recipe(job.recipe, job.dp), style="bold"), "evidence")
    throughput = f"{prediction.tokens_per_s:,.0f} tokens/s"
    throughput += f", {prediction.tokens_per_s_per_gpu:,.0f} per GPU"
    for name, value, grade in (
        ("step time", _with_bar(prediction), evidence.time.grade),
        ("MFU / HFU", _format_use(prediction), evidence.time.grade),
        ("throughput", throughput, evidence.time.grade),
        ("memory", format_memory(prediction), evidence.memory.grade),
        ("cost", _format_cost(prediction, job, assumed), evidence.cost.grade),
    ):
        table.add_row(name, value, str(grade))
    return table


def format_measure_first(claimed: Claim) -> str | None:
    """What to say of an answer that nobody's published run comes near; None of others."""
    published = claimed.published
    if published is None or not claimed.measure_first:
        return None
    return (
        f"the best published run of this kind reaches {format_percent(published.mfu)} MFU "
        f"({published.model} on {published.num_gpus:,} {published.kind.gpu}, "
        f"{published.kind.framework}: {published.source}), this claims "
        f"{format_percent(claimed.mfu)}"
    )


def _with_bar(prediction: Prediction) -> str:
    words = format_seconds(prediction.step_time_s)
    if prediction.interval_s is None:
        return words
    low, high = map(format_seconds, prediction.interval_s)
    return f"{words}, error bar {low} to {high}"


def _format_use(prediction: Prediction) -> str:
    use = f"{format_percent(prediction.mfu)} / {format_percent(prediction.hfu)}"
    if prediction.mfu_causal == prediction.mfu:
        return use
    return f"{use}; MFU {format_percent(prediction.mfu_causal)} with attention counted causal"


def format_memory(prediction: Prediction) -> str:
    """What the fullest GPU needs of what is usable, and by how much it fits or does not."""
    memory = prediction.memory
    needed = (
        f"{memory.needed_bytes / 2**30:.1f} of {format_gib(memory.capacity_bytes)} usable"
        f" on stage {memory.worst_stage}"
    )
    return f"{_VERDICTS[memory.band]}: {needed}, {format_room(memory)}"


def _format_cost(prediction: Prediction, job: Job, assumed: Collection[str]) -> str:
    tokens = job.training.tokens
    run = format_tokens(tokens) + (" (assumed)" if "tokens" in assumed else "")
    return (
        f"{format_usd(prediction.cost_of_run_usd)} and "
        f"{format_long_time(tokens / prediction.tokens_per_s)} for {run}, "
        f"{format_usd(prediction.cost_per_billion_tokens_usd)} a billion, at "
        f"{format_usd(job.gpu.price_usd_per_hour)} per GPU-hour"
    )


@dataclass(frozen=True, eq=False, repr=False)
class RecipesTable:
    """The best recipes, best first, or a front; as many columns as there is room for."""

    trials: Sequence[Trial]
    objectives: tuple[str, ...]
    job_of: JobOf

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table(wide=options.max_width >= _WIDE)

    def _table(self, *, wide: bool) -> Table:
        # A prediction of one recipe is shown without what reads searches.
        from trainscout.reports.trials import predicted

        predictions = [predicted(trial) for trial in self.trials]
        jobs = [self.job_of(trial.recipe) for trial in self.trials]
        evidence = [evidence_of(p, job) for p, job in zip(predictions, jobs, strict=True)]
        pareto = len(self.objectives) > 1
        title = "Pareto-optimal recipes" if pareto else "Best recipes"
        table = plain_table(title=title, title_style="bold")
        shortest_s = min(prediction.step_time_s for prediction in predictions)
        # As many decimals as show four significant digits.
        digits = max(0, 3 - math.floor(math.log10(shortest_s)))
        capacity = predictions[0].memory.capacity_bytes / 2**30
        columns = [
            _Column("step", "s", [f"{p.step_time_s:.{digits}f}" for p in predictions], "time"),
            _Column("MFU", "%", [f"{p.mfu * 100:.1f}" for p in predictions], "time"),
            _Column(
                "memory",
                f"of {capacity:.1f}",
                [f"{p.memory.needed_bytes / 2**30:.1f}" for p in predictions],
                "memory",
            ),
            _Column(
                "cost",
                "$/B tok",
                [f"{p.cost_per_billion_tokens_usd:,.0f}" for p in predictions],
                "cost",
            ),
        ]
        table.add_column("#", justify="right")
        table.add_column("recipe", overflow="fold")
        for column in columns:
            table.add_column(column.heading(evidence), justify="right", no_wrap=True)
        from trainscout.reports.explain import format_behind

        behind = wide and not pareto and len(predictions) > 1
        if behind:
            table.add_column("behind #1\nmostly for", justify="right")
        for place, (trial, job) in enumerate(zip(self.trials, jobs, strict=True)):
            cells = [column.cell(place, evidence) for column in columns]
            if behind:
                cells.append(format_behind(predictions[0], predictions[place]) if place else "")
            table.add_row(
                str(place + 1),
                format_recipe(trial.recipe, job.dp),
                *cells,
                style="bold" if place == 0 and not pareto else None,
            )
        return table


@dataclass(frozen=True, eq=False, repr=False)
class _Column:
    """Figures of one kind, and which of the grades is theirs."""

    name: str
    unit: str
    figures: Sequence[str]
    graded: str

    def heading(self, evidence: Sequence[Evidence]) -> str:
        """Name, unit and grade: of all figures, or that the figures have marks of their own."""
        grades = self._grades(evidence)
        stated = str(grades[0]) if len(set(grades)) == 1 else "m/f/e"
        return f"{self.name}\n{self.unit}\n{stated}"

    def cell(self, place: int, evidence: Sequence[Evidence]) -> str:
        grades = self._grades(evidence)
        mark = f" {_MARKS[grades[place]]}" if len(set(grades)) > 1 else ""
        return self.figures[place] + mark

    def _grades(self, evidence: Sequence[Evidence]) -> list[Grade]:
        return [getattr(each, self.graded).grade for each in evidence]


def format_evidence(evidence: Evidence) -> str:
    """One sentence for each of time, memory and price."""
    return (
        f"time {evidence.time.grade}: {evidence.time.reason}. "
        f"Memory {evidence.memory.grade}: {evidence.memory.reason}. "
        f"Price {evidence.price.grade}: {evidence.price.reason}"
    )
