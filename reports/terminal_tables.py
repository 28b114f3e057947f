"""What a search looks like on a terminal and in a text file."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from trainscout.optimizer.trial import SearchResult
from trainscout.reports.answer import RecipesTable, figures, format_measure_first
from trainscout.reports.dialects.megatron_lm import settings_of
from trainscout.reports.dialects.setting import command_options
from trainscout.reports.error_bars import format_distinguishable, format_selection
from trainscout.reports.explain import JobOf, why_best
from trainscout.reports.files import LAUNCH, REPORT
from trainscout.reports.first_screen import first_screen, near
from trainscout.reports.front_plot import front_plot
from trainscout.reports.launch.directory import first_launch
from trainscout.reports.nothing_found import format_tight, why_nothing_fits
from trainscout.reports.prediction_report import Notes, noted, prediction_notes
from trainscout.reports.proof import format_claim, format_proof
from trainscout.reports.search_page.page import PAGE
from trainscout.reports.trials import decided_between, predicted
from trainscout.reports.verification import verification_report
from trainscout.reports.wording import STOP_WORDS, format_question
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.uncertainty.fastest import claim
from trainscout.simulators.virtual_cluster.traced.verification import Verification


def search_report(
    result: SearchResult,
    job_of: JobOf,
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
        directory: where its files are; None: there are none.
        checks: what tracing the best found.
        verbosity: ``quiet``: the answer alone; ``normal``: what decides; ``verbose``: all.
        relief: what would have made a recipe fit, where none did.
        launch_files: what is written that launches the first recipe, in words.
        assumed: fields of the training that nobody gave.
    """
    verbose = verbosity == "verbose"
    shown = decided_between(result)
    if not shown:
        job = job_of(result.trials[0].recipe if result.trials else Recipe())
        answer = [Text(format_question(job, assumed), style="bold")]
        answer += [Text(line) for line in (why_nothing_fits(result, job_of), *relief)]
        notes = [] if verbosity == "quiet" else _search_notes(result, directory, verbose)
        return Group(*answer, noted(notes))
    job, single = job_of(shown[0].recipe), len(result.objectives) == 1
    if verbosity == "normal" and single:
        screen = first_screen(result, job_of, directory, assumed)
        return Group(screen, verification_report(checks, job_of)) if checks else screen
    parts: list[RenderableType] = [Text(format_question(job, assumed), style="bold")]
    table = RecipesTable(shown, result.objectives, job_of)
    if single:
        parts.append(figures(predicted(shown[0]), job, assumed))
        unheard_of = format_measure_first(claim(job, predicted(shown[0]).mfu))
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
        if predicted(shown[0]).interval_s is not None:
            notes.append(("Chosen", format_selection()))
    notes += prediction_notes(predicted(shown[0]), job, verbose)
    if directory is not None:
        notes += _launch_notes(job, directory, verbose, launch_files)
    notes += _search_notes(result, directory, verbose)
    return Group(*parts, noted(notes))


def _launch_notes(job: Job, directory: Path, whole: bool, launch_files: str | None) -> Notes:
    """What launches #1, whose arguments are many; or just what the file could not say."""
    launch = first_launch(job)
    words = []
    if launch.impossible:
        words.append(f"No launch.sh: {launch.title} refuses " + "; ".join(launch.impossible))
    elif launch.framework == "megatron_lm" and whole:
        arguments = " ".join(map(shlex.join, command_options(settings_of(job))))
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
        in_words = format_proof if verbose else format_claim
        notes.append(("Proof", in_words(result.certificate)))
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
    if not verbose:
        words = [each for each in words if not each.startswith("0 ")]
    resumed = f", {result.resumed_trials} of them resumed" if result.resumed_trials else ""
    simulating_s = sum(trial.duration_s for trial in result.trials)
    simulating = f" ({simulating_s:.1f} s of simulating)" if verbose else ""
    return (
        f"{len(result.trials):,} point{'s' if len(result.trials) != 1 else ''} proposed{resumed}: "
        + "; ".join(words)
        + f". {result.wall_s:.1f} s{simulating}; ended because {STOP_WORDS[result.stopped]}."
    )
