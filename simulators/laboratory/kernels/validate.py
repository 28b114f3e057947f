"""Hold the kernel models against tables of measured times.

    trainscout kernels validate TABLE.csv [TABLE.csv.gz ...] --json OUT.json

What a table holds is recognised from its columns (``measured_rows.py``). Every row is predicted on
the GPU and under the conditions it names, or listed with the reason why not. Errors are
fractions of the measured time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainscout.conf.catalogue import declared_gpus
from trainscout.simulators.laboratory.score import summarise
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.output import check_output, show_text, write_output
from trainscout.simulators.predictor.kernels.measured_rows import read_tables
from trainscout.simulators.predictor.kernels.row_prices import PricedGroup, price_rows
from trainscout.simulators.predictor.question.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

GROUPINGS = ("by_class", "by_gpu", "by_size_band", "by_dtype")


def predicted_rows(tables: Sequence[Path], gpus: Any) -> pd.DataFrame:
    """Every row of every table: ``id`` (the row's own, if it has one), ``measured`` and
    ``predicted`` seconds, ``error``, ``assumptions``, ``reason`` (empty where it is predicted),
    and a column for each of ``GROUPINGS``.

    Raises:
        InputError: for a table that cannot be read, and where none holds rows.
    """
    import pandas as pd

    parts = []
    read = [(table, *each) for table in tables for each in read_tables(table)]
    for path, kind, rows in read:
        name = f"{path.name.split('.')[0]}{f'.{kind}' if path.suffix == '.json' else ''}"
        lines = [f"{name}:{line}" for line in range(2, len(rows) + 2)]
        ids = rows["id"].astype(str).to_numpy() if "id" in rows.columns else np.array(lines)
        for group in price_rows(kind, rows, gpus):
            content = {
                "id": ids[group.positions],
                "measured": group.measured_s,
                "predicted": group.predicted_s,
                "assumptions": [list(group.assumptions)] * len(group.positions),
                "reason": group.reasons,
                "by_class": group.kernel_class,
                "by_gpu": group.gpu,
                "by_size_band": _bands(group),
                "by_dtype": group.dtype or "none",
            }
            parts.append(pd.DataFrame(content))
    if not parts:
        raise InputError("tables", ", ".join(map(str, tables)), "hold no rows")
    found = pd.concat(parts, ignore_index=True)
    return found.assign(error=found["predicted"] / found["measured"] - 1.0)


def _bands(group: PricedGroup) -> list[str]:
    """The decade of each row's size."""
    decades = np.floor(np.log10(np.maximum(np.nan_to_num(group.size), 1.0))).astype(int)
    return [f"1e{each:02d}-1e{each + 1:02d} {group.size_unit}" for each in decades.tolist()]


def summaries(rows: pd.DataFrame) -> dict[str, Any]:
    """The overall figures and those of every grouping, by name."""

    def figures(part: pd.DataFrame) -> dict[str, Any]:
        used = part["reason"] == ""
        return summarise(part.loc[used, "error"].to_numpy(), int((~used).sum())).to_dict()

    report: dict[str, Any] = {"overall": figures(rows)}
    for grouping in GROUPINGS:
        # What is not predicted may have no size.
        whole = rows[rows["reason"] == ""] if grouping == "by_size_band" else rows
        report[grouping] = {str(name): figures(part) for name, part in whole.groupby(grouping)}
    return report


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = command_parser(
        "kernels validate",
        "Hold the prices of kernels against measured times, by class and GPU.",
        "trainscout kernels validate measured/h200/*.csv --json kernels.json\n"
        "trainscout kernels validate measured/own/*.csv --gpus our_gpus",
    )
    options.add_argument("tables", type=Path, nargs="+", help="CSV files of measured times")
    options.add_argument("--json", type=Path, help="write summaries and every row here")
    options.add_argument("--gpus", type=Path, help="folder of GPU declarations")
    return options


def main(arguments: Sequence[str]) -> int:
    """Predict every row, print the summary by class and GPU, write the JSON file.

    Raises:
        InputError: for tables that cannot be read or hold no rows, or an output that cannot be
            written.
    """
    options = parser().parse_args(arguments)
    check_output("--json", options.json, options.tables)
    gpus = declared_gpus(options.gpus)
    rows = predicted_rows(options.tables, gpus)
    report = summaries(rows)
    if options.json is not None:
        used = rows["reason"] == ""
        stated = {
            "rows": rows.loc[used, ["id", "measured", "predicted", "error", "assumptions"]],
            "skipped": rows.loc[~used, ["id", "reason"]],
        }
        parts = [f'"{name}": {json.dumps(value, indent=1)}' for name, value in report.items()]
        for name, shown in stated.items():
            parts.append(f'"{name}": {shown.to_json(orient="records", double_precision=15)}')
        write_output("--json", options.json, "{\n" + ",\n".join(parts) + "\n}\n")
    show_text(_summary(report))
    return OK


def _summary(report: dict[str, Any]) -> str:
    lines = []
    for grouping in ("overall", "by_class", "by_gpu"):
        named = report[grouping].items() if grouping != "overall" else [("all", report["overall"])]
        title = grouping.replace("_", " ")
        lines.append(f"{title:42}      n  skipped  median    mean     p90    bias")
        lines += [f"  {name:38} {_line(figures)}" for name, figures in named]
    return "\n".join(lines) + "\n"


def _line(figures: dict[str, Any]) -> str:
    counts = f"{figures['n']:8d} {figures['skipped']:8d}"
    if not figures["n"]:
        return counts
    keys = ("median_abs_error", "mean_abs_error", "p90_abs_error", "bias")
    return counts + "".join(f" {100 * figures[key]:6.1f}%" for key in keys)
