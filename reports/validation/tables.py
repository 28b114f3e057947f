"""What a validation looks like on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from reports.validation.replay import Result

_NAMES = {
    "by_source": "by source",
    "by_gpu": "by GPU",
    "by_family": "by model family",
    "by_scale": "by number of GPUs",
    "by_precision": "by precision",
}
_COLUMNS = ("median_abs_error", "mean_abs_error", "p90_abs_error", "bias")
_REASONS_SHOWN = 12


def validation_tables(report: Mapping[str, Any], results: Sequence[Result]) -> RenderableType:
    """Step time by every grouping, memory by source, and why rows were left out."""
    parts: list[RenderableType] = []
    for key, name in _NAMES.items():
        parts.append(_table(f"Step time {name}", report[key], report["overall"]))
    if report["memory"]["overall"]["n"]:
        memory = report["memory"]
        parts.append(_table("Peak memory by source", memory["by_source"], memory["overall"]))
    parts.append(_reasons(results))
    return Group(*parts)


def _table(
    title: str, groups: Mapping[str, Mapping[str, Any]], overall: Mapping[str, Any]
) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for name in ("rows", "skipped", "median", "mean", "p90", "bias"):
        table.add_column(name, justify="right")
    for name, summary in groups.items():
        table.add_row(name, *_cells(summary))
    table.add_section()
    table.add_row("all", *_cells(overall), style="bold")
    return table


def _cells(summary: Mapping[str, Any]) -> list[str]:
    return [
        str(summary["n"]),
        str(summary["skipped"]),
        *(_percent(summary[column], signed=column == "bias") for column in _COLUMNS),
    ]


def _percent(value: float | None, *, signed: bool) -> str:
    if value is None:
        return "-"
    return f"{value:+.1%}" if signed else f"{value:.1%}"


def _reasons(results: Sequence[Result]) -> Text:
    counts = Counter(result.reason for result in results if result.prediction is None)
    if not counts:
        return Text("Every row was predicted.")
    lines = [f"{sum(counts.values())} rows not predicted:"]
    for reason, number in counts.most_common(_REASONS_SHOWN):
        lines.append(f"  {number:4d}  {reason}")
    if len(counts) > _REASONS_SHOWN:
        lines.append(f"  and {len(counts) - _REASONS_SHOWN} other reasons (see the JSON file)")
    return Text("\n".join(lines))
