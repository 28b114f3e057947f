"""Recipes that were re-checked by tracing real ranks: both sources side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainscout.reports.explain import JobOf
from trainscout.reports.wording import format_part, format_recipe, format_seconds
from trainscout.simulators.predictor.io.terminal import plain_table
from trainscout.simulators.virtual_cluster.traced.verification import RankCheck, Verification

# More differences than this are counted instead of listed; the file has them all.
_SHOWN_DIFFERENCES = 3
# Parts of the step below this share of it are left out.
_SHOWN_PART = 0.005


def verification_json(checks: Sequence[Verification]) -> str:
    """A JSON list, best recipe first, of everything that was found."""
    return json.dumps([check.to_dict() for check in checks], indent=2, allow_nan=False) + "\n"


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
    if check.builtin_step_s is not None and check.traced_step_s is not None:
        both = (check.builtin_step_s, check.traced_step_s)
        what = f"step of {check.micro_batches} micro-batches"
        if check.micro_batches < check.step_micro_batches:
            what += f" (of {check.step_micro_batches})"
        table.add_row(what, *map(format_seconds, both), _percent(*both))
        for part in dict.fromkeys((*check.builtin_parts_s, *check.traced_parts_s)):
            each = (check.builtin_parts_s.get(part, 0.0), check.traced_parts_s.get(part, 0.0))
            if max(each) >= _SHOWN_PART * max(both):
                table.add_row(
                    f"  {format_part(part)}", *map(format_seconds, each), _percent(*each)
                )
    for rank in _shown(check.ranks):
        _add_rank(table, rank)
    notes = [Text(f"  {note}") for note in (*check.notes, *_differences(_shown(check.ranks)))]
    return Group(table, *notes)


def _shown(ranks: Sequence[RankCheck]) -> list[RankCheck]:
    """The first stage's rank, a middle one's and the last's; the file has them all."""
    return (
        [ranks[index] for index in sorted({0, len(ranks) // 2, len(ranks) - 1})] if ranks else []
    )


def _add_rank(table: Table, check: RankCheck) -> None:
    builtin, traced = check.builtin, check.traced
    table.add_row(f"rank {check.rank}, stage {check.stage}", style="bold")
    for name, unit, each, other in (
        ("peak allocated", 2**30, builtin.peak_allocated_bytes, traced.peak_allocated_bytes),
        ("peak reserved", 2**30, builtin.peak_reserved_bytes, traced.peak_reserved_bytes),
        ("parameters", 2**30, builtin.parameter_bytes, traced.parameter_bytes),
        ("matrix products", 1e12, builtin.gemm_flops, traced.gemm_flops),
    ):
        suffix = "GiB" if unit == 2**30 else "TFLOP"
        both = (f"{each / unit:,.2f} {suffix}", f"{other / unit:,.2f} {suffix}")
        table.add_row(f"  {name}", *both, _percent(each, other))
    for communicator in sorted({*builtin.communicated_bytes, *traced.communicated_bytes}):
        ours = builtin.communicated_bytes.get(communicator, 0)
        theirs = traced.communicated_bytes.get(communicator, 0)
        both = (f"{ours / 1e6:,.1f} MB", f"{theirs / 1e6:,.1f} MB")
        table.add_row(f"  communicated, {communicator}", *both, _percent(ours, theirs))


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
