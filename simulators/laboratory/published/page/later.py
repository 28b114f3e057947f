"""Runs that were read after the model was made: what was predicted before anybody looked, and
what is predicted now."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainscout.simulators.laboratory.published.published import BlindTest
from trainscout.simulators.laboratory.score import summarise
from trainscout.simulators.predictor.io.markdown import table

from .headline import Report
from .markdown import TEXTS, percent, signed

_FIGURES = ("median", "p90", "bias")
_HEADER = (
    *("publication", "rows", "blind: median", *_FIGURES[1:], "inside"),
    *("now: median", *_FIGURES[1:]),
)


Times = tuple[float, float, float]


@dataclass(frozen=True)
class Blind:
    """What was predicted of a run before it had been looked at.

    ``kept_apart``: its publication was kept apart afterwards too, so no mend could see it.
    ``times``: the step, its lowest and its highest in seconds; None where the row was refused.
    """

    kept_apart: bool
    times: Times | None


def read_blind(path: Path) -> dict[str, Blind]:
    """The first predictions of the runs of a test, by their ids."""
    with path.open(encoding="utf-8", newline="") as file:
        return {cells["id"]: _blind(cells) for cells in csv.DictReader(file)}


def _blind(cells: Mapping[str, str]) -> Blind:
    times = None
    if cells["predicted_s"]:
        times = (float(cells["predicted_s"]), float(cells["low_s"]), float(cells["high_s"]))
    return Blind(cells["kept_apart"] == "1", times)


Test = tuple[BlindTest, Report, Mapping[str, Blind]]
"""A test, what ``validation_report`` returns for its runs as predicted now, and their first
predictions; a run without one is left out."""

_SCALES = ((1, "1 GPU"), (8, "2-8 GPUs"), (64, "9-64 GPUs"), (math.inf, "more than 64 GPUs"))


def blind_summary(tests: Sequence[Test]) -> str:
    """One table of all tests: each, all together, and all by the number of GPUs."""
    rows: list[tuple[str, ...]] = []
    everything: list[Report] = []
    first: dict[str, Blind] = {}
    for test, report, blind in tests:
        runs = _runs(report, blind)
        if runs:
            rows.append((test.name, *_cells(runs, blind)))
            everything += runs
            first.update(blind)
    if not rows:
        return ""
    rows.append(("**all**", *_cells(everything, first)))
    bands: dict[str, list[Report]] = {name: [] for _, name in _SCALES}
    for run in everything:
        bands[next(name for most, name in _SCALES if run["num_gpus"] <= most)].append(run)
    rows += [(name, *_cells(runs, first)) for name, runs in bands.items() if runs]
    return table(("test", *_HEADER[1:]), rows)


def blind_tests_page(tests: Sequence[Test]) -> str:
    """The page of blind tests, by publication."""
    return "\n\n".join([TEXTS["later"], *filter(None, (_test_section(*test) for test in tests))])


def _runs(report: Report, blind: Mapping[str, Blind]) -> list[Report]:
    return [row for row in report["rows"] if row["counted"] and row["id"] in blind]


def _test_section(test: BlindTest, report: Report, blind: Mapping[str, Blind]) -> str:
    runs = _runs(report, blind)
    if not runs:
        return ""
    rows = [("**all**", *_cells(runs, blind))]
    for name, apart in (("kept apart", True), ("looked at", False)):
        some = [row for row in runs if blind[row["id"]].kept_apart is apart]
        if some:
            rows.append((f"**{name}**", *_cells(some, blind)))
            for group in sorted({row["group"] for row in some}):
                rows.append((group, *_cells([r for r in some if r["group"] == group], blind)))
    refused = sum(first.times is None for first in blind.values())
    words = TEXTS["later_test"].format(
        name=test.name,
        runs=test.runs.name,
        widening=test.widening,
        refused=refused,
        rows=len(blind),
        statement=test.statement,
    )
    return f"{words.rstrip()}\n\n{table(_HEADER, rows)}"


def _cells(runs: Sequence[Report], blind: Mapping[str, Blind]) -> tuple[str, ...]:
    first = [
        (run["measured"], times) for run in runs if (times := blind[run["id"]].times) is not None
    ]
    held = [low <= measured <= high for measured, (_, low, high) in first]
    return (
        str(len(runs)),
        *_errors([(measured, times[0]) for measured, times in first]),
        f"{sum(held) / len(held):.0%}" if held else "-",
        *_errors([(run["measured"], run["predicted"]) for run in runs]),
    )


def _errors(runs: Sequence[tuple[float, float]]) -> tuple[str, ...]:
    """The figures of runs by their measured and predicted times."""
    if not runs:
        return ("-",) * len(_FIGURES)
    summary = summarise([predicted / measured - 1 for measured, predicted in runs])
    return (
        percent(summary.median_abs_error),
        percent(summary.p90_abs_error),
        signed(summary.bias),
    )
