"""Balanced and uneven experts side by side."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from trainscout.reports.wording import format_gib, format_seconds
from trainscout.simulators.predictor.io.terminal import plain_table
from trainscout.simulators.predictor.replay.expert_load import ExpertCost, ExpertLoad


def expert_report(load: ExpertLoad) -> Table:
    """What the step, the exchange, the expert GEMMs and memory are, and would be were experts
    equally popular."""
    table = plain_table("", "#balanced", "#as declared", "#times", title="Uneven experts")
    names = ("step time", "exposed EP communication", "expert GEMMs", "peak memory")
    pairs = zip(_figures(load.balanced).values(), _figures(load.uneven).values(), strict=True)
    for name, (even, uneven) in zip(names, pairs, strict=True):
        words = format_gib if name == "peak memory" else format_seconds
        table.add_row(name, words(even), words(uneven), f"{uneven / even:.2f}" if even else "-")
    return table


def expert_record(load: ExpertLoad) -> dict[str, Any]:
    """The same as plain values, for JSON."""
    return {"balanced": _figures(load.balanced), "as_declared": _figures(load.uneven)}


def _figures(cost: ExpertCost) -> dict[str, float]:
    return {
        "step_time_s": cost.prediction.step_time_s,
        "ep_communication_s": cost.prediction.breakdown_s.get("ep_communication", 0.0),
        "expert_gemm_s": cost.gemm_s,
        "peak_reserved_bytes": cost.prediction.memory.peak_reserved_bytes,
    }
