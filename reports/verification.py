"""Recipes that were re-checked by tracing real ranks: both sources side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from trainscout.reports.explain import JobOf
from trainscout.reports.wording import format_part, format_recipe, format_seconds
from trainscout.simulators.predictor.io.output import json_text
from trainscout.simulators.predictor.io.terminal import plain_table
from trainscout.simulators.virtual_cluster.traced.verification import RankCheck, Verification

# More differences than this are counted instead of listed; the file has them all.
_SHOWN_DIFFERENCES = 3
# Parts of the step below this share of it are left out.
_SHOWN_PART = 0.005


def verification_json(checks: Sequence[Verification]) -> str:
    """A JSON list, best recipe first, of everything that was found."""
    return json_text([check.to_dict() for check in checks])


def verification_metrics(check: Verification) -> dict[str, float]:
    """What was found under names that carry their units; of ranks the one that holds most."""
    if check.builtin_step_s is None or check.traced_step_s is None:
        return {}
    metrics: dict[str, float] = {
        "verified/micro_batches": check.micro_batches,
        "verified/builtin_step_s": check.builtin_step_s,
        "verified/traced_step_s": check.traced_step_s,
    }
    for source in ("builtin", "traced"):
        figures = [getattr(rank, source) for rank in check.ranks]
        for name in ("peak_allocated", "peak_reserved", "parameter"):
            most_bytes = max(getattr(each, f"{name}_bytes") for each in figures)
            metrics[f"verified/{source}_{name}_gib"] = most_bytes / 2**30
    return metrics


def verification_record(checks: Sequence[Verification], job_of: JobOf) -> list[dict[str, Any]]:
    """What a page shows of each recipe: its ``words``, what was traced, and ``rows`` of ``label``,
    ``unit`` (of ``s``, ``bytes``, ``flops``), ``builtin`` and ``traced``; or the ``problem`` that
    left none."""
    return [
        {
            "words": format_recipe(check.recipe, job_of(check.recipe).dp),
            "micro_batches": check.micro_batches,
            "step_micro_batches": check.step_micro_batches,
            "problem": check.problem,
            "notes": list(check.notes),
            "rows": [
                {**asdict(row), "label": row.label if row.label == STEP else _of(row)}
                for row in compared(check)
            ],
            "differences": [
                {"rank": rank.rank, "words": list(rank.differences)}
                for rank in check.ranks
                if rank.differences
            ],
        }
        for check in checks
    ]


def _of(row: Compared) -> str:
    return f"of it {row.label}" if row.of == STEP else f"{row.of}: {row.label}"


def verification_report(checks: Sequence[Verification], job_of: JobOf) -> RenderableType:
    """A table a recipe: step time, then memory, parameters, products and communication of ranks
    of the first, a middle and the last stage."""
    parts: list[RenderableType] = []
    for number, check in enumerate(checks, start=1):
        parts += [_one(number, check, job_of), Text()]
    return Group(*parts)


def _one(number: int, check: Verification, job_of: JobOf) -> RenderableType:
    recipe = format_recipe(check.recipe, job_of(check.recipe).dp)
    title = f"Verified #{number}: {recipe}"
    if check.problem is not None:
        return Group(Text(title), Text(f"  not verified: {check.problem}"))
    table = plain_table("", "#built in", "#traced", "#difference", title=title)
    of = ""
    for row in compared(check):
        if row.of != of and row.of != STEP:
            table.add_row(row.of, style="bold")
        of, label = row.of, f"  {row.label}"
        if row.label == STEP:
            label = f"step of {check.micro_batches} micro-batches"
            if check.micro_batches < check.step_micro_batches:
                label += f" (of {check.step_micro_batches})"
        words = _WORDS["sent" if row.label.startswith(_SENT) else row.unit]
        both = (row.builtin, row.traced)
        table.add_row(label, *map(words, both), _percent(*both))
    notes = [Text(f"  {note}") for note in (*check.notes, *_differences(_shown(check.ranks)))]
    return Group(table, *notes)


@dataclass(frozen=True)
class Compared:
    """A figure of both sources; ``of`` what it is (the step, a rank), in ``unit``: s, bytes or
    flops."""

    of: str
    label: str
    unit: str
    builtin: float
    traced: float


STEP, _SENT = "step", "communicated, "
_FIGURES = (
    ("peak allocated", "peak_allocated_bytes", "bytes"),
    ("peak reserved", "peak_reserved_bytes", "bytes"),
    ("parameters", "parameter_bytes", "bytes"),
    ("matrix products", "gemm_flops", "flops"),
)


def compared(check: Verification) -> Iterator[Compared]:
    """The step, its parts, then figures of ranks of the first, a middle and the last stage."""
    if check.builtin_step_s is not None and check.traced_step_s is not None:
        yield Compared(STEP, STEP, "s", check.builtin_step_s, check.traced_step_s)
        least_s = _SHOWN_PART * max(check.builtin_step_s, check.traced_step_s)
        for part, *both_s in _both(check.builtin_parts_s, check.traced_parts_s):
            if max(both_s) >= least_s:
                yield Compared(STEP, format_part(part), "s", *both_s)
    for rank in _shown(check.ranks):
        of = f"rank {rank.rank}, stage {rank.stage}"
        for label, field, unit in _FIGURES:
            yield Compared(
                of, label, unit, getattr(rank.builtin, field), getattr(rank.traced, field)
            )
        sent = _both(rank.builtin.communicated_bytes, rank.traced.communicated_bytes)
        for communicator, *both in sorted(sent):
            yield Compared(of, f"{_SENT}{communicator}", "bytes", *both)


def _both(
    ours: Mapping[str, float], theirs: Mapping[str, float]
) -> Iterator[tuple[str, float, float]]:
    for name in dict.fromkeys((*ours, *theirs)):
        yield name, ours.get(name, 0.0), theirs.get(name, 0.0)


def _shown(ranks: Sequence[RankCheck]) -> list[RankCheck]:
    """The first stage's rank, a middle one's and the last's; the file has them all."""
    return (
        [ranks[index] for index in sorted({0, len(ranks) // 2, len(ranks) - 1})] if ranks else []
    )


_WORDS: dict[str, Callable[[float], str]] = {
    "s": format_seconds,
    "bytes": lambda value: f"{value / 2**30:,.2f} GiB",
    "flops": lambda value: f"{value / 1e12:,.2f} TFLOP",
    "sent": lambda value: f"{value / 1e6:,.1f} MB",
}


def _percent(builtin: float, traced: float) -> str:
    if builtin == traced:
        return "equal"
    return f"{traced / builtin - 1:+.2%}" if builtin else "only traced"


def _differences(ranks: Sequence[RankCheck]) -> list[str]:
    words = []
    for rank in ranks:
        if not rank.differences:
            continue
        shown = "; ".join(rank.differences[:_SHOWN_DIFFERENCES])
        more = len(rank.differences) - _SHOWN_DIFFERENCES
        rest = f"; and {more} more" if more > 0 else ""
        words.append(f"rank {rank.rank}: {shown}{rest}")
    return words
