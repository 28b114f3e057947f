"""What a search and a prediction look like on a terminal and in a text file."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.reports.answer import (
    RecipesTable,
    figures,
    format_evidence,
    format_measure_first,
)
from trainscout.reports.dialects.megatron_lm import settings_of
from trainscout.reports.dialects.setting import command_words
from trainscout.reports.error_bars import (
    format_distinguishable,
    format_error_bar,
    format_selection,
)
from trainscout.reports.evidence import evidence_of
from trainscout.reports.explain import JobOf, why_best
from trainscout.reports.files import LAUNCH, REPORT
from trainscout.reports.first_screen import first_screen, near
from trainscout.reports.front_plot import front_plot
from trainscout.reports.launch import first_launch
from trainscout.reports.nothing_found import format_tight, why_nothing_fits
from trainscout.reports.proof import format_proof
from trainscout.reports.search_page.page import PAGE
from trainscout.reports.trials import predicted
from trainscout.reports.verification import verification_report
from trainscout.reports.wording import (
    STOP_WORDS,
    format_part,
    format_percent,
    format_question,
    format_seconds,
)
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.uncertainty import chosen
from trainscout.simulators.virtual_cluster.traced.verification import Verification

# Columns that the whole names of the kinds of memory need.
_ROOM_FOR_KINDS = 110
# What a GPU needs beside what the allocator reserves.
_OUTSIDE_ALLOCATOR = ("communication_buffers", "context")
_SHORT_KINDS = {
    "parameters": "params",
    "gradients": "grads",
    "optimizer": "optim.",
    "activations": "activ.",
    "temporary": "temp.",
    "communication buffers": "comm.",
    "context": "CUDA",
    "peak allocated": "peak\nalloc.",
    "peak reserved": "peak\nreserved",
}

Notes = list[tuple[str, str]]


def shown_trials(result: SearchResult, top_k: int) -> tuple[Trial, ...]:
    """The trials people are shown: the best K, or every Pareto one for several objectives."""
    return result.pareto if len(result.objectives) > 1 else result.best[:top_k]


def search_report(
    result: SearchResult,
    job_of: JobOf,
    top_k: int,
    directory: Path | None,
    checks: Sequence[Verification] = (),
    verbosity: str = "normal",
    relief: Sequence[str] = (),
    launch_files: str | None = None,
    assumed: Collection[str] = (),
) -> RenderableType:
    """The report of a search: the first screen; or all there is, the answer first, then the table,
    what tracing ``checks`` found, the plot, why, how sure, trial counts, files.

    Args:
        result: of the search.
        job_of: its jobs.
        top_k: how many recipes to show.
        directory: where its files are; None: there are none.
        checks: what tracing the best found.
        verbosity: ``quiet``: the answer alone; ``normal``: what decides; ``verbose``: all.
        relief: what would have made a recipe fit, where none did.
        launch_files: what is written that launches the first recipe, in words.
        assumed: fields of the training that nobody gave.
    """
    verbose = verbosity == "verbose"
    shown = shown_trials(result, top_k)
    if not shown:
        asked = job_of(result.trials[0].recipe if result.trials else Recipe())
        answer = [Text(format_question(asked, assumed), style="bold")]
        answer += [Text(line) for line in (why_nothing_fits(result, job_of), *relief)]
        notes = [] if verbosity == "quiet" else _search_notes(result, directory, verbose)
        return Group(*answer, _noted(notes))
    job, single = job_of(shown[0].recipe), len(result.objectives) == 1
    if verbosity == "normal" and single:
        screen = first_screen(result, job_of, directory, assumed)
        return Group(screen, verification_report(checks, job_of)) if checks else screen
    parts: list[RenderableType] = [Text(format_question(job, assumed), style="bold")]
    table = RecipesTable(shown, result.objectives, job_of)
    if single:
        expected = chosen(job, predicted(shown[0]))
        as_chosen = None if verbosity == "quiet" else expected
        parts.append(figures(predicted(shown[0]), job, as_chosen, assumed))
        unheard_of = None if expected is None else format_measure_first(expected)
        if unheard_of is not None:
            parts.append(Text.assemble(("measure first  ", "bold"), unheard_of))
        if directory is not None and not first_launch(job).impossible:
            # On a line of its own, to be copied whole.
            start = f"bash {shlex.quote(str(near(directory / LAUNCH)))}"
            parts.append(Text.assemble(("launch      ", "bold"), start))
    if verbosity == "quiet":
        return Group(*parts) if single else Group(*parts, table)
    parts += [Text(), table, Text(), verification_report(checks, job_of)]
    plot = front_plot(result, shown)
    if plot is not None:
        parts += [plot, Text()]
    notes = [("Tight", line) for line in format_tight(result, job_of)]
    if single:
        notes.append(("Why #1", why_best(result, job_of)))
        distinguishable = format_distinguishable(shown, job_of)
        if distinguishable is not None:
            notes.append(("How sure", distinguishable))
    if single and chosen(job, predicted(shown[0])) is not None:
        notes.append(("As chosen", format_selection()))
    notes += _prediction_notes(predicted(shown[0]), job, verbose)
    if directory is not None:
        notes += _launch_notes(job, directory, verbose, launch_files)
    notes += _search_notes(result, directory, verbose)
    return Group(*parts, _noted(notes))


def prediction_report(
    prediction: Prediction, job: Job, verbosity: str = "normal", assumed: Collection[str] = ()
) -> RenderableType:
    """One recipe's prediction: its figures, where the time goes, memory by stage, how sure."""
    question = Text(format_question(job, assumed), style="bold")
    answer = Group(question, figures(prediction, job, assumed=assumed))
    if verbosity == "quiet":
        return answer
    return Group(
        answer,
        Text(),
        _breakdown_table(prediction),
        Text(),
        MemoryTable(prediction),
        Text(),
        _noted(_prediction_notes(prediction, job, verbosity == "verbose")),
    )


def _prediction_notes(prediction: Prediction, job: Job, verbose: bool) -> Notes:
    notes = [
        ("Error bar", format_error_bar(prediction)),
        ("Evidence", format_evidence(evidence_of(prediction, job))),
    ]
    if verbose and prediction.estimated_operations:
        notes.append(("Only estimated", ", ".join(prediction.estimated_operations)))
    if prediction.assumptions:
        notes.append(("Assumed", "; ".join(prediction.assumptions)))
    return notes


def _launch_notes(job: Job, directory: Path, whole: bool, launch_files: str | None) -> Notes:
    """What launches #1, whose arguments are many; or just what the file could not say."""
    launch = first_launch(job)
    words = []
    if launch.impossible:
        words.append(f"No launch.sh: {launch.title} refuses " + "; ".join(launch.impossible))
    elif launch.framework == "megatron_lm" and whole:
        arguments = " ".join(map(shlex.join, command_words(settings_of(job))))
        words.append(f"Megatron-LM, whole command in {directory / LAUNCH}: {arguments}")
    else:
        words.append(f"{LAUNCH} starts it with {launch.title}")
    if launch_files is not None:
        words.append(launch_files)
    elif launch.unsupported:
        words.append(f"{launch.title} cannot express: " + "; ".join(launch.unsupported))
    return [("Launch #1", ". ".join(words))] if words else []


def _search_notes(result: SearchResult, directory: Path | None, verbose: bool) -> Notes:
    """What was looked at, what of it is proved, and where the files are."""
    notes = [("Trials", _format_counts(result, verbose))]
    if result.certificate is not None:
        notes.append(("Proof", format_proof(result.certificate)))
    notes += [("Note", note) for note in result.notes]
    if directory is not None:
        also = f"{REPORT} with this" if verbose else f"{REPORT} with more than is here"
        notes.append(("Files", f"{directory}: {PAGE} to look at, {also}"))
    return notes


def _format_counts(result: SearchResult, verbose: bool) -> str:
    counts = result.counts()
    words = [f"{counts['ok']} simulated and fit", f"{counts['oom']} out of memory"]
    if counts["tight"]:
        words.insert(1, f"{counts['tight']} tight")
    for status in ("pruned", "invalid"):
        rules = sorted(result.counts_by_rule(status).items(), key=lambda item: -item[1])
        by_rule = ", ".join(f"{rule} {count}" for rule, count in rules) if verbose else ""
        words.append(f"{counts[status]} {status}" + (f" ({by_rule})" if by_rule else ""))
    words.append(f"{counts['failed']} failed")
    resumed = f", {result.resumed_trials} of them resumed" if result.resumed_trials else ""
    simulating_s = sum(trial.duration_s for trial in result.trials)
    simulating = f" ({simulating_s:.1f} s of simulating)" if verbose else ""
    return (
        f"{len(result.trials):,} point{'s' if len(result.trials) != 1 else ''} proposed{resumed}: "
        + "; ".join(words)
        + f". {result.wall_s:.1f} s{simulating}; ended because {STOP_WORDS[result.stopped]}."
    )


def _breakdown_table(prediction: Prediction) -> Table:
    table = Table(title="Where the step goes", title_justify="left", box=None, pad_edge=False)
    table.add_column("part")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    for part, seconds in sorted(prediction.breakdown_s.items(), key=lambda item: -item[1]):
        if seconds:
            share = format_percent(seconds / prediction.step_time_s)
            table.add_row(format_part(part), format_seconds(seconds), share)
    return table


@dataclass(frozen=True)
class MemoryTable:
    """Memory of every pipeline stage by kind; with short headings where there is little room."""

    prediction: Prediction

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        stages = self.prediction.memory.per_stage
        kinds = list(dict.fromkeys(kind for stage in stages for kind in stage.kind))
        peaks = ["peak allocated", "peak reserved", "needed"]
        names = [kind.replace("_", " ") for kind in [*kinds, *peaks]]
        if options.max_width < _ROOM_FOR_KINDS:
            names = [_SHORT_KINDS.get(name, name) for name in names]
        title = "Memory by pipeline stage, GiB"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for name in ("stage", *names):
            table.add_column(name, justify="right")
        for stage in stages:
            amounts = [stage.kind.get(kind, 0) for kind in kinds]
            outside = sum(stage.kind.get(kind, 0) for kind in _OUTSIDE_ALLOCATOR)
            reserved = stage.peak_reserved_bytes
            amounts += [stage.peak_allocated_bytes, reserved, reserved + outside]
            table.add_row(str(stage.stage), *(f"{amount / 2**30:.2f}" for amount in amounts))
        yield table


def _noted(notes: Notes) -> RenderableType:
    """Paragraphs beside their labels, in one column."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for label, words in notes:
        grid.add_row(f"{label}:", words)
    return grid
