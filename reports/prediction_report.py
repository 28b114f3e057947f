"""What a prediction looks like on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from trainscout.reports.answer import figures, format_evidence
from trainscout.reports.evidence import evidence_of
from trainscout.reports.wording import (
    format_error_bar,
    format_part,
    format_percent,
    format_question,
    format_seconds,
)
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.io.terminal import labelled, plain_table
from trainscout.simulators.predictor.question.job import Job

# Columns that the whole names of the kinds of memory need.
_ROOM_FOR_KINDS = 125
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
    "peak reserved": "peak\nresvd.",
}

# Parts of a step below this share are shown together, where not all is.
_LEAST_SHARE = 0.005
_ASSUMED = "Assumed"

Notes = Sequence[tuple[str, str]]


def prediction_report(
    prediction: Prediction,
    job: Job,
    verbosity: str = "normal",
    assumed: Collection[str] = (),
    more: Notes = (),
) -> RenderableType:
    """One recipe's prediction: its figures, where the time goes, memory by stage, how sure; and
    ``more`` where that is not all."""
    question = Text(format_question(job, assumed), style="bold")
    answer = Group(question, figures(prediction, job, assumed=assumed))
    if verbosity == "quiet":
        return answer
    whole = verbosity == "verbose"
    notes = prediction_notes(prediction, job, whole)
    if not whole:
        # The error bar and the grades of evidence stand beside the figures.
        notes = [*(note for note in notes if note[0] == _ASSUMED), *more]
    return Group(
        answer,
        Text(),
        _breakdown_table(prediction, whole),
        Text(),
        MemoryTable(prediction, whole),
        Text(),
        noted(notes),
    )


def prediction_notes(prediction: Prediction, job: Job, verbose: bool) -> Notes:
    """How sure a prediction is, and what it rests on."""
    notes = [
        ("Error bar", format_error_bar(prediction)),
        ("Evidence", format_evidence(evidence_of(prediction, job))),
    ]
    if verbose and prediction.estimated_operations:
        notes.append(("Only estimated", ", ".join(prediction.estimated_operations)))
    if prediction.assumptions:
        notes.append((_ASSUMED, "; ".join(prediction.assumptions)))
    return notes


def _breakdown_table(prediction: Prediction, whole: bool) -> Table:
    table = plain_table("part", "#time", "#share", title="Where the step goes")
    parts = {format_part(part): seconds for part, seconds in prediction.breakdown_s.items()}
    least = 0.0 if whole else _LEAST_SHARE * prediction.step_time_s
    small = [part for part, seconds in parts.items() if seconds < least]
    rest = sum(parts.pop(part) for part in small)
    rows = sorted(parts.items(), key=lambda item: -item[1])
    for part, seconds in [*rows, ("all else", rest)]:
        if seconds:
            share = format_percent(seconds / prediction.step_time_s)
            table.add_row(part, format_seconds(seconds), share)
    return table


@dataclass(frozen=True, eq=False, repr=False)
class MemoryTable:
    """Memory of pipeline stages by kind; with short headings where there is little room.

    ``whole``: of all of them, and else of those that need most and least.
    """

    prediction: Prediction
    whole: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        stages = self.prediction.memory.per_stage
        kinds = list(dict.fromkeys(kind for stage in stages for kind in stage.kind))
        peaks = ["peak allocated", "peak reserved", "needed"]
        names = [kind.replace("_", " ") for kind in [*kinds, *peaks]]
        if options.max_width < _ROOM_FOR_KINDS:
            names = [_SHORT_KINDS.get(name, name) for name in names]
        title = "Memory by pipeline stage, GiB"
        if not self.whole and len(stages) > 2:
            title += f": the most and the least of {len(stages)}"
            ranked = sorted(stages, key=lambda stage: stage.peak_reserved_bytes)
            stages = (ranked[-1], ranked[0])
        table = plain_table(*(f"#{name}" for name in ("stage", *names)), title=title)
        for stage in stages:
            amounts = [stage.kind.get(kind, 0) for kind in kinds]
            outside = sum(stage.kind.get(kind, 0) for kind in _OUTSIDE_ALLOCATOR)
            reserved = stage.peak_reserved_bytes
            amounts += [stage.peak_allocated_bytes, reserved, reserved + outside]
            table.add_row(str(stage.stage), *(f"{amount / 2**30:.2f}" for amount in amounts))
        yield table


def noted(notes: Notes) -> RenderableType:
    """Paragraphs beside their labels, in one column."""
    return labelled(((f"{label}:", words) for label, words in notes), gap=1)
