"""A traced step for people (tables) and for programs (JSON)."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainscout.simulators.predictor.io.terminal import plain_table
from trainscout.simulators.predictor.replay.priced import PARTS
from trainscout.simulators.virtual_cluster.traces.perfetto import Counter

from .answer import RankStep, TracedStep

GIB = 2**30
_MOST_RANKS = 16
_MOST_NAMES = 8
_MOST_MISMATCHES = 5


_OF_STEP = (
    *("step_time_s", "world_size", "critical_rank", "breakdown_s", "precision", "hfu", "mfu"),
    *("fits", "evidence_share", "coverage_share", "estimated_operations", "unknown_operations"),
    *("mismatches", "assumptions"),
)


def to_dict(step: TracedStep) -> dict[str, Any]:
    """A JSON-ready dictionary; units as in the field names."""
    return {
        **{name: getattr(step, name) for name in _OF_STEP},
        "ranks": [
            {
                "rank": rank.rank,
                "ranks": rank.ranks,
                "breakdown_s": rank.breakdown_s,
                "flops": rank.flops,
                "memory": memory_dict(rank),
            }
            for rank in step.ranks
        ],
    }


def memory_dict(rank: RankStep) -> dict[str, Any]:
    memory = rank.memory
    return {
        "peak_allocated_bytes": memory.peak_allocated_bytes,
        "peak_reserved_bytes": memory.peak_reserved_bytes,
        "at_peak_bytes": memory.over_time.at_peak,
        "outside_bytes": memory.outside_bytes,
        "capacity_bytes": memory.capacity_bytes,
        "headroom_bytes": memory.headroom_bytes,
        "allocation_retries": memory.over_time.retries,
        "runs_out": memory.runs_out,
    }


def memory_counters(rank: RankStep) -> list[Counter]:
    """What the allocator held over the step, for a timeline."""
    over_time, time_s = rank.memory.over_time, rank.memory.time_s
    shown = time_s >= 0
    return [
        Counter(f"{name} memory (bytes)", time_s[shown], values[shown])
        for name, values in (
            ("allocated", over_time.allocated_bytes),
            ("reserved", over_time.reserved_bytes),
        )
    ]


def report(step: TracedStep) -> RenderableType:
    """Everything a terminal shows."""
    parts: list[RenderableType] = [
        Text(_headline(step)),
        Text(),
        _breakdown_table(step),
        Text(),
        _memory_table(step),
        Text(),
        Text(_evidence(step)),
    ]
    parts += [Text(f"Taken for granted: {each}") for each in step.assumptions]
    parts += [
        Text(f"Does not fit together: {each}") for each in step.mismatches[:_MOST_MISMATCHES]
    ]
    hidden = len(step.mismatches) - _MOST_MISMATCHES
    if hidden > 0:
        parts.append(Text(f"... and {hidden} more"))
    return Group(*parts)


def _headline(step: TracedStep) -> str:
    words = [f"Step time {_seconds(step.step_time_s)} on {step.world_size} GPUs"]
    if step.mfu is not None:
        words.append(f"MFU {step.mfu:.1%}")
    words.append(f"HFU {step.hfu:.1%} of the {step.precision} peak")
    words.append("fits in memory" if step.fits else "DOES NOT FIT in memory")
    return ", ".join(words)


def _breakdown_table(step: TracedStep) -> Table:
    shown = step.ranks[:_MOST_RANKS]
    title = f"Where the step goes (ms); critical: rank {step.critical_rank}"
    table = plain_table("part", *(f"#rank {rank.rank}" for rank in shown), title=title)
    for part in PARTS:
        times = [rank.breakdown_s.get(part, 0.0) for rank in shown]
        if any(times):
            table.add_row(part.replace("_", " "), *[f"{1e3 * each:.2f}" for each in times])
    return table


def _memory_table(step: TracedStep) -> Table:
    figures = ("#allocated", "#reserved", "#unused", "#outside", "#headroom")
    usable = f"{step.ranks[0].memory.capacity_bytes / GIB:.2f}"
    title = f"Memory (GiB, {usable} usable); outside PyTorch: CUDA's context, NCCL's buffers"
    table = plain_table("#rank", "#stands for", *figures, title=title)
    for rank in step.ranks[:_MOST_RANKS]:
        memory = rank.memory
        used = memory.over_time.at_peak["allocated"]
        table.add_row(
            str(rank.rank),
            f"{rank.ranks} ranks",
            f"{memory.peak_allocated_bytes / GIB:.2f}",
            f"{memory.peak_reserved_bytes / GIB:.2f}",
            f"{1 - used / max(1, memory.peak_reserved_bytes):.1%}",
            f"{sum(memory.outside_bytes.values()) / GIB:.2f}",
            f"{memory.headroom_bytes / GIB:.2f}",
        )
    return table


def _evidence(step: TracedStep) -> str:
    shares = ", ".join(f"{name} {share:.1%}" for name, share in step.evidence_share.items())
    rules = ", ".join(
        f"{name} {share:.1%}" for name, share in list(step.coverage_share.items())[:_MOST_NAMES]
    )
    lines = [f"Priced as: {shares}", f"Device time by rule: {rules}"]
    if step.unknown_operations:
        names = ", ".join(list(step.unknown_operations)[:_MOST_NAMES])
        share = sum(step.unknown_operations.values())
        lines.append(
            f"Operations no rule knows, by their bytes: {names} ({share:.1%} of the time)"
        )
    return "\n".join(lines)


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 1 else f"{1e3 * seconds:.2f} ms"
