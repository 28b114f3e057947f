"""Figures and tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.io.markdown import table
from trainscout.simulators.predictor.io.yaml_files import read_yaml

TEXTS: Mapping[str, Any] = read_yaml(Path(__file__).with_name("page_texts.yaml"))
SUMMARY_HEADER = ("rows", "skipped", "median", "mean", "p90", "bias")
MET = {True: "yes", False: "**no**", None: "-"}


def summary_cells(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """The six figures of a summary, in the order of ``SUMMARY_HEADER``."""
    return (
        str(summary["n"]),
        str(summary["skipped"]),
        percent(summary["median_abs_error"]),
        percent(summary["mean_abs_error"]),
        percent(summary["p90_abs_error"]),
        signed(summary["bias"]),
    )


def summary_table(name: str, groups: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """The summaries of groups, whose kind is ``name``."""
    rows = [(group, *summary_cells(summary)) for group, summary in groups]
    return table((name, *SUMMARY_HEADER), rows)


def beside_others(sets: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Peers' names; and of every set of published cases its name, rows, our mean error, the flat
    baseline's and each peer's."""
    peers = sorted({peer for one in sets.values() for peer in one["peers"]})
    rows = []
    for name, one in sets.items():
        of = (one["ours"], one["flat_baseline"], *(one["peers"].get(peer, {}) for peer in peers))
        errors = (percent(summary.get("mean_abs_error")) for summary in of)
        rows.append((name, str(one["ours"]["n"]), *errors))
    return peers, rows


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def folded(title: str, body: str) -> str:
    """A long body behind its title."""
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"
