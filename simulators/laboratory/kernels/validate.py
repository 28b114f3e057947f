"""Hold the kernel models against tables of measured times.

    trainscout kernels validate TABLE.csv [TABLE.csv.gz ...] --json OUT.json

What a table holds is recognised from its columns (``measured_rows.py``). Every row is predicted on
the GPU and under the conditions it names, or listed with the reason why not. Errors are
fractions of the measured time. ``--sample N`` keeps N random rows (seeded) of each table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from trainscout.conf.catalogue import declared_gpus
from trainscout.simulators.laboratory.score import summarise
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.output import (
    check_output,
    replacing,
    show_text,
    unwritable,
)
from trainscout.simulators.predictor.kernels.measured_rows import read_tables
from trainscout.simulators.predictor.kernels.row_prices import PricedGroup, price_rows
from trainscout.simulators.predictor.question.errors import InputError

GROUPINGS = ("by_class", "by_gpu", "by_size_band", "by_dtype")
SEED = 0


class Tally:
    """Errors and skipped rows by grouping and name, gathered group by group."""

    def __init__(self) -> None:
        self._errors: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
        self._skipped: dict[tuple[str, str], int] = {}

    def add(self, group: PricedGroup) -> None:
        """Count one priced group."""
        used = group.reasons == ""
        errors = group.predicted_s[used] / group.measured_s[used] - 1.0
        names = {
            "overall": "",
            "by_class": group.kernel_class,
            "by_gpu": group.gpu,
            "by_dtype": group.dtype or "none",
        }
        for grouping, name in names.items():
            self._put((grouping, name), errors, int((~used).sum()))
        if used.any():
            decades = np.floor(np.log10(np.maximum(group.size[used], 1.0))).astype(int)
            for decade in np.unique(decades):
                band = f"1e{decade:02d}-1e{decade + 1:02d} {group.size_unit}"
                self._put(("by_size_band", band), errors[decades == decade], 0)

    def _put(self, key: tuple[str, str], errors: NDArray[np.float64], skipped: int) -> None:
        self._errors.setdefault(key, []).append(errors)
        self._skipped[key] = self._skipped.get(key, 0) + skipped

    def report(self) -> dict[str, Any]:
        """The overall figures and those of every grouping, by name."""
        figures = {
            key: summarise(np.concatenate(parts), self._skipped[key]).to_dict()
            for key, parts in self._errors.items()
        }
        report: dict[str, Any] = {
            "overall": figures.get(("overall", ""), summarise(np.array([])).to_dict())
        }
        for wanted in GROUPINGS:
            names = sorted(name for grouping, name in figures if grouping == wanted)
            report[wanted] = {name: figures[wanted, name] for name in names}
        return report


def write_rows(stream: TextIO, groups: Iterable[tuple[NDArray[np.object_], PricedGroup]]) -> None:
    """Every predicted row, then every skipped one, as members of an open JSON object."""
    skipped: list[tuple[NDArray[np.object_], NDArray[np.object_]]] = []
    stream.write('"rows": [')
    separator = "\n"
    for ids, group in groups:
        used = group.reasons == ""
        if not used.all():
            skipped.append((ids[~used], group.reasons[~used]))
        if not used.any():
            continue
        said = json.dumps(list(group.assumptions))
        measured, predicted = group.measured_s[used], group.predicted_s[used]
        lines = [
            f'{{"id": {name}, "measured": {was:.6g}, "predicted": {is_:.6g}, '
            f'"error": {is_ / was - 1.0:.5f}, "assumptions": {said}}}'
            for name, was, is_ in zip(
                ids[used].tolist(), measured.tolist(), predicted.tolist(), strict=True
            )
        ]
        stream.write(separator + ",\n".join(lines))
        separator = ",\n"
    stream.write('\n],\n"skipped": [')
    separator = "\n"
    for ids, reasons in skipped:
        lines = [
            f'{{"id": {name}, "reason": {json.dumps(reason)}}}'
            for name, reason in zip(ids.tolist(), reasons.tolist(), strict=True)
        ]
        stream.write(separator + ",\n".join(lines))
        separator = ",\n"
    stream.write("\n]")


def priced_tables(
    tables: Sequence[Path], gpus: Any, sample: int | None
) -> Iterable[tuple[NDArray[np.object_], PricedGroup]]:
    """(JSON-encoded row ids, priced group) of every table; the id is the row's own, if it has one.

    Raises:
        InputError: for a table that cannot be read.
    """
    for table, kind, rows in ((path, *each) for path in tables for each in read_tables(path)):
        name = f"{table.name.split('.')[0]}{f'.{kind}' if table.suffix == '.json' else ''}"
        if "id" in rows.columns:
            ids = np.array([json.dumps(str(value)) for value in rows["id"]], dtype=object)
        else:
            ids = np.array([f'"{name}:{line}"' for line in range(2, len(rows) + 2)], dtype=object)
        if sample is not None and sample < len(rows):
            chosen = np.sort(np.random.default_rng(SEED).permutation(len(rows))[:sample])
            rows, ids = rows.iloc[chosen], ids[chosen]
        for group in price_rows(kind, rows, gpus):
            yield ids[group.positions], group


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = command_parser(
        "kernels validate",
        "Hold the prices of kernels against measured times, by class and GPU.",
        "trainscout kernels validate measured/h200/*.csv --json kernels.json\n"
        "trainscout kernels validate gemm.csv.gz --sample 1000",
    )
    options.add_argument("tables", type=Path, nargs="+", help="CSV files of measured times")
    options.add_argument("--json", type=Path, help="write summaries and every row here")
    options.add_argument("--gpus", type=Path, help="folder of GPU declarations")
    options.add_argument("--sample", type=int, help="rows to keep of each table")
    return options


def main(arguments: Sequence[str]) -> int:
    """Predict every row, print the summary by class and GPU, write the JSON file.

    Raises:
        InputError: for tables that cannot be read or hold no rows, or an output that cannot be
            written.
    """
    options = parser().parse_args(arguments)
    if options.sample is not None and options.sample < 1:
        raise InputError("--sample", options.sample, "is not a number of rows", ">= 1")
    check_output("--json", options.json, options.tables)
    gpus = declared_gpus(options.gpus)
    tally = Tally()
    groups = list(priced_tables(options.tables, gpus, options.sample))
    for _, group in groups:
        tally.add(group)
    if not groups:
        raise InputError("tables", ", ".join(map(str, options.tables)), "hold no rows")
    report = tally.report()
    if options.json is not None:
        _write(options.json, report, groups)
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


def _write(
    path: Path, report: dict[str, Any], groups: list[tuple[NDArray[np.object_], PricedGroup]]
) -> None:
    try:
        with replacing(path) as stream:
            stream.write("{\n")
            for name, value in report.items():
                stream.write(f'"{name}": {json.dumps(value, indent=1)},\n')
            write_rows(stream, groups)
            stream.write("\n}\n")
    except OSError as error:
        raise unwritable("--json", path, error) from error
