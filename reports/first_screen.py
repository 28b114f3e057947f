"""The first screen of a search: what to run, what it takes, and what else there is to choose."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.reports.answer import format_measure_first, format_memory
from trainscout.reports.error_bars import lead_share, tie_shares
from trainscout.reports.evidence import price_is_assumed
from trainscout.reports.explain import JobOf
from trainscout.reports.files import LAUNCH
from trainscout.reports.launch.directory import first_launch
from trainscout.reports.search_page.page import PAGE
from trainscout.reports.trials import choices_of, offered_tight, predicted
from trainscout.reports.whole_network import network_note
from trainscout.reports.wording import (
    STOP_WORDS,
    format_layout,
    format_long_time,
    format_percent,
    format_question,
    format_recipe,
    format_seconds,
    format_tokens,
    format_usd,
)
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.io.terminal import Hanging, labelled, plain_table
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.uncertainty.fastest import claim
from trainscout.simulators.predictor.uncertainty.interval import LEVEL

_NOTED_MFU = 0.9
"""As a share of the MFU, the causal count of it that is low enough to stand beside it."""
_CUT_SHORT = ("interrupted", "timeout")
# One line of thirty is for where the search is tracked.
_TIGHT, _MOST_COLUMNS, _MOST_LINES = 2, 100, 29
_LABEL, _WHOLE_WORD = 7, 18
_MOST_TIMES = 2.0
"""What takes more than so many steps of the best is no alternative."""
_DEGREE = re.compile(r"(tp|pp|dp|cp|ep|etp)\d+")


def first_screen(
    result: SearchResult, job_of: JobOf, directory: Path | None, assumed: Collection[str] = ()
) -> RenderableType:
    """The answer of a search of one objective, in 30 lines of 100 columns.

    Args:
        result: something fits.
        job_of: its jobs.
        directory: where its files are; None: there are none.
        assumed: fields of the training that nobody gave (see ``format_question``).
    """
    best = result.best[0]
    job, prediction = job_of(best.recipe), predicted(best)
    answer = (
        ("Run", Text(format_layout(job), "bold")),
        ("", format_recipe(job.recipe, job.dp)),
        ("Step", format_step(prediction)),
        ("Cost", format_run(prediction, job, assumed)),
        ("Memory", format_memory(prediction)),
    )
    others = _options(result, job_of)
    notes: list[tuple[str, str]] = []
    impossible = impossible_degrees(job)
    if impossible:
        notes.append(("Cannot", impossible))
    notes.append(("Sure", _format_sure(result, others)))
    between = network_note(result)
    if between is not None:
        notes.append(("Network", between.removeprefix("the network between nodes is ")))
    if result.stopped in _CUT_SHORT or result.resumed_trials:
        notes.append(("Ended", _format_end(result)))
    unheard_of = format_measure_first(claim(job, prediction.mfu))
    if unheard_of is not None:
        notes.append(("Caution", f"measure first: {unheard_of}"))
    if directory is not None:
        launch = first_launch(job)
        start = f"bash {shlex.quote(str(near(directory / LAUNCH)))}"
        if launch.impossible:
            start = f"no launch files; {launch.title} cannot: {'; '.join(launch.impossible)}"
        notes.append(("Start", start))
        notes.append(("Look", f"{near(directory / PAGE)}; here: verbosity=verbose"))
    question = Text(format_question(job, assumed), "bold")
    shown = _Option(best, job, "", None)
    above = Group(question, labelled(answer, least=_LABEL))
    return _Screen(above, shown, others, labelled(notes, least=_LABEL))


@dataclass(frozen=True)
class _Screen:
    """In at most 100 columns the answer, the other options and the notes; of the options so many
    that lines are few."""

    answer: RenderableType
    best: _Option
    others: Sequence[_Option]
    notes: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fitting = options.update(width=min(options.max_width, _MOST_COLUMNS))
        shown = list(self.others)
        while True:
            between = [_table(shown, self.best, fitting.max_width)] if shown else []
            screen = Group(self.answer, *between, self.notes)
            # The slowest of the layouts for which nothing speaks but that they are others.
            plain = [each for each in shown if each.note in ("", "tie")]
            if not plain or len(console.render_lines(screen, fitting)) <= _MOST_LINES:
                break
            shown.remove(plain[-1])
        yield Constrain(screen, _MOST_COLUMNS)


@dataclass(frozen=True)
class _Option:
    """Another recipe, and what to say of it; ``tied``: the lead, as a share of a step, below which
    the two are a tie, if they are."""

    trial: Trial
    job: Job
    note: str
    tied: float | None


def _options(result: SearchResult, job_of: JobOf) -> list[_Option]:
    """What may not fit, but well may, then what else there is to choose from."""
    found = choices_of(result)
    best = found[0][0]
    listed = [
        _Option(
            each,
            job_of(each.recipe),
            f"if it fits: {predicted(each).memory.fit_probability:.0%} likely",
            None,
        )
        for each in offered_tight(result)[:_TIGHT]
    ]
    shares = tie_shares([trial for trial, _ in found], job_of)
    for (trial, why), share in list(zip(found, shares, strict=True))[1:]:
        lead = lead_share(predicted(best), predicted(trial))
        if predicted(trial).step_time_s > _MOST_TIMES * predicted(best).step_time_s:
            continue  # as what a search found first, where it was cut short
        tied = share if share is not None and lead <= share else None
        note = ", ".join(filter(None, ("tie" if tied is not None else "", why)))
        listed.append(_Option(trial, job_of(trial.recipe), note, tied))
    return listed


def _table(listed: Sequence[_Option], best: _Option, width: int) -> Table:
    """One row an option; of its switches those that the answer does not have."""
    # Rather many short lines of notes than a switch in two parts.
    notes = None if width >= _MOST_COLUMNS else max(13, (width - 33) * 2 // 5)
    table = plain_table(header_style="bold")
    table.add_column("Otherwise", overflow="fold")
    for name in ("step", "against it", "free"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold", max_width=notes)
    words = format_recipe(best.job.recipe, best.job.dp).split()
    ours = {*words, f"mb{best.job.recipe.micro_batch}"}
    for option in listed:
        prediction = predicted(option.trial)
        words = format_recipe(option.job.recipe, option.job.dp).split()
        other = [word for word in words if word not in ours and not _DEGREE.fullmatch(word)]
        cell = Text(format_layout(option.job, micro_batch=False))
        if other:
            # Where the column is narrow, a line ends before a long word's bracket.
            split = (
                word if len(word) <= _WHOLE_WORD else word.replace("(", " (") for word in other
            )
            cell.append(f" {' '.join(split)}", "dim")
        behind = prediction.step_time_s / predicted(best.trial).step_time_s - 1
        room = round(prediction.memory.headroom_bytes / 2**30, 1) + 0.0  # never -0.0
        step, free = format_seconds(prediction.step_time_s), f"{room:.1f} GiB"
        table.add_row(Hanging(cell), step, f"{behind * 100:+.1f} %", free, option.note)
    return table


def format_step(prediction: Prediction) -> str:
    """The step, its MFU and its error bar."""
    step, mfu = format_seconds(prediction.step_time_s), format_percent(prediction.mfu)
    words = f"{step}, MFU {mfu}"
    if prediction.mfu_causal <= _NOTED_MFU * prediction.mfu:
        words += f", counted causal {format_percent(prediction.mfu_causal)}"
    if prediction.interval_s is None:
        return words
    bar = " to ".join(map(format_seconds, prediction.interval_s))
    return f"{words} ({round(LEVEL * 5)} in 5 such runs: {bar})"


def format_run(prediction: Prediction, job: Job, assumed: Collection[str]) -> str:
    """Days and dollars of the whole run, and what they go by."""
    tokens = job.training.tokens
    price = f"{format_usd(job.gpu.price_usd_per_hour)} a GPU-hour"
    return (
        f"{format_tokens(tokens)}{_mark('tokens' in assumed)}: "
        f"{format_long_time(tokens / prediction.tokens_per_s)}, "
        f"{format_usd(prediction.cost_of_run_usd)} at {price}{_mark(price_is_assumed(job.gpu))}"
    )


def _mark(assumed: bool) -> str:
    return " (assumed)" if assumed else ""


def impossible_degrees(job: Job) -> str:
    """Degrees that people try and that this job cannot have, each with why; empty: none."""
    found = []
    tried = {"tp": job.cluster.domain, "ep": job.model.moe.num_experts if job.model.moe else 1}
    for name, most in tried.items():
        for degree in (1 << power for power in range(1, most.bit_length())):
            recipe = Recipe(tp=degree) if name == "tp" else Recipe(ep=degree)
            broken = why_invalid(replace(job, recipe=recipe))
            if broken is not None and broken.field == name:
                reason = broken.reason.removeprefix(f"{name}={degree} ")
                found.append(f"{name.upper()} {degree} ({reason})")
    return ", ".join(found)


_NUMERICS = {
    None: "",
    "declared": " that keep the numerics (fewer bits: space.numerics=any)",
    "16bit": " with 16-bit gradients too (space.numerics=16bit)",
    "any": " in fewer bits too (space.numerics=any)",
}


def _format_sure(result: SearchResult, others: Sequence[_Option]) -> str:
    """What is proved of the answer, what it was chosen from, and what ties with it."""
    certificate, numerics = result.certificate, _NUMERICS[result.numerics]
    if certificate is None:
        words = f"the best of {len(result.trials):,} recipes{numerics} that were tried"
        if result.unproved is not None and result.stopped != "interrupted":
            words += f", not proved: {result.unproved}"
    elif certificate.recipes == 1:
        words = "the only recipe of the space"
    elif certificate.proved:
        words = (
            f"the best of {certificate.recipes:,} recipes{numerics}, proved for the predictions"
        )
    else:
        words = f"the best of {certificate.simulated:,} recipes{numerics} so far"
        if certificate.gap is not None:
            words += f", and {certificate.gap:.1%} at most behind the best of all"
    shares = [option.tied for option in others if option.tied is not None]
    if shares:
        words += (
            f"; a tie: predicted differences of measured layouts were off by more than "
            f"{format_percent(max(shares))} one time in {round(1 / (1 - LEVEL))}: measure both "
            "before a long run"
        )
    return words


def _format_end(result: SearchResult) -> str:
    resumed = f", {result.resumed_trials:,} of them resumed" if result.resumed_trials else ""
    words = f"{len(result.trials):,} points proposed{resumed}; ended because "
    words += STOP_WORDS[result.stopped]
    return f"{words}: resume=true goes on" if result.stopped in _CUT_SHORT else words


def near(path: Path) -> Path:
    """The path as it is written from here, where it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
