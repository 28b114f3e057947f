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
    even, uneven = _figures(load.balanced), _figures(load.uneven)
    for name in even:
        words = format_gib if name == "peak memory" else format_seconds
        ratio = f"{uneven[name] / even[name]:.2f}" if even[name] else "-"
        table.add_row(name, words(even[name]), words(uneven[name]), ratio)
    return table


def expert_record(load: ExpertLoad) -> dict[str, Any]:
    """The same as plain values, for JSON."""
    return {
        name: {
            "step_time_s": cost.prediction.step_time_s,
            "ep_communication_s": cost.prediction.breakdown_s.get("ep_communication", 0.0),
            "expert_gemm_s": cost.gemm_s,
            "peak_reserved_bytes": cost.prediction.memory.peak_reserved_bytes,
        }
        for name, cost in (("balanced", load.balanced), ("as_declared", load.uneven))
    }


def _figures(cost: ExpertCost) -> dict[str, float]:
    return {
        "step time": cost.prediction.step_time_s,
        "exposed EP communication": cost.prediction.breakdown_s.get("ep_communication", 0.0),
        "expert GEMMs": cost.gemm_s,
        "peak memory": cost.prediction.memory.peak_reserved_bytes,
    }
