"""Recipes that were traced afterwards: what both sources say, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainscout.reports.explain import JobOf
from trainscout.reports.wording import format_part, format_recipe
from trainscout.simulators.virtual_cluster.traced.verification import RankCheck, Verification

# Parts of the step below this share of it are left out, as in the table on the terminal.
SHOWN_SHARE = 0.005


def checked_recipes(checks: Sequence[Verification], job_of: JobOf) -> list[dict[str, Any]]:
    """For each recipe its ``words``, what was traced, and ``rows`` of ``label``, ``unit`` (of
    ``s``, ``bytes``, ``flops``), ``builtin`` and ``traced``; or the ``problem`` that left none."""
    return [
        {
            "words": format_recipe(check.recipe, job_of(check.recipe).dp),
            "micro_batches": check.micro_batches,
            "step_micro_batches": check.step_micro_batches,
            "problem": check.problem,
            "notes": list(check.notes),
            "rows": list(_rows(check)),
            "differences": [
                {"rank": rank.rank, "words": list(rank.differences)}
                for rank in check.ranks
                if rank.differences
            ],
        }
        for check in checks
    ]


def _rows(check: Verification) -> Iterator[dict[str, Any]]:
    if check.builtin_step_s is None or check.traced_step_s is None:
        return
    yield _row("step", "s", check.builtin_step_s, check.traced_step_s)
    least_s = SHOWN_SHARE * max(check.builtin_step_s, check.traced_step_s)
    for part, builtin_s, traced_s in _both(check.builtin_parts_s, check.traced_parts_s):
        if max(builtin_s, traced_s) >= least_s:
            yield _row(f"of it {format_part(part)}", "s", builtin_s, traced_s)
    for rank in _shown(check.ranks):
        yield from _rank_rows(rank)


def _shown(ranks: Sequence[RankCheck]) -> list[RankCheck]:
    """The first stage's rank, a middle one's and the last's; ``verification.json`` has all."""
    places = sorted({0, len(ranks) // 2, len(ranks) - 1}) if ranks else []
    return [ranks[place] for place in places]


def _rank_rows(check: RankCheck) -> Iterator[dict[str, Any]]:
    name = f"rank {check.rank} (stage {check.stage})"
    for label, field, unit in (
        ("peak allocated", "peak_allocated_bytes", "bytes"),
        ("peak reserved", "peak_reserved_bytes", "bytes"),
        ("parameters", "parameter_bytes", "bytes"),
        ("matrix products", "gemm_flops", "flops"),
    ):
        values = (getattr(check.builtin, field), getattr(check.traced, field))
        yield _row(f"{name}: {label}", unit, *values)
    for communicator, ours, theirs in _both(
        check.builtin.communicated_bytes, check.traced.communicated_bytes
    ):
        yield _row(f"{name}: communicated, {communicator}", "bytes", ours, theirs)


def _both(
    ours: Mapping[str, float], theirs: Mapping[str, float]
) -> Iterator[tuple[str, float, float]]:
    for name in dict.fromkeys((*ours, *theirs)):
        yield name, ours.get(name, 0.0), theirs.get(name, 0.0)


def _row(label: str, unit: str, builtin: float, traced: float) -> dict[str, Any]:
    return {"label": label, "unit": unit, "builtin": builtin, "traced": traced}
