"""Hold predicted slowdowns of kernels beside communication against measured ones.

Tables: see ``slowdown_rows.py``. Nothing of the physical model (``overlap.py``) is fitted to
them. Beside it stands ``one factor``: the median slowdown that the other sources measured,
whatever runs, which is the least that a model must beat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from trainscout.conf.catalogue import declared_gpus
from trainscout.simulators.predictor.interference.overlap import KERNEL_CLASSES, Floats
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.output import check_output, show_text, write_output
from trainscout.simulators.predictor.question.errors import InputError

from .slowdown_rows import Samples, read_samples

TOLERANCES = (0.05, 0.10, 0.15)


def score(samples: Samples, predicted: Floats, rows: NDArray[np.bool_]) -> dict[str, Any]:
    """Errors of predictions, shape (n,), on chosen rows: shares within the tolerances, RMSE,
    median, and the slowdown of all kernels whose time alone is known put together, i.e. the
    error that a step would make of it (None where none is known)."""
    measured = samples.slowdown[rows]
    relative = np.abs(predicted[rows] / measured - 1)
    return {
        "within_5_10_15_percent": [
            round(float(np.mean(relative <= limit)), 3) for limit in TOLERANCES
        ],
        "rmse": round(float(np.sqrt(np.mean((predicted[rows] - measured) ** 2))), 3),
        "median_abs_error": round(float(np.median(relative)), 3),
        "by_time": weighted_by_time(samples, predicted, rows),
    }


def weighted_by_time(samples: Samples, slowdown: Floats, rows: NDArray[np.bool_]) -> float | None:
    """Mean of slowdowns (n,) over the time that chosen kernels take alone, where that is known."""
    known = rows & np.isfinite(samples.time_us)
    if not known.any():
        return None
    return round(float(np.average(slowdown[known], weights=samples.time_us[known])), 3)


def one_factor(samples: Samples) -> Floats:
    """The median slowdown of the other sources' rows, shape (n,); 1 where there is no other."""
    predicted = np.ones(len(samples.slowdown))
    for number in range(len(samples.sources)):
        own = samples.group == number
        if not own.all():
            predicted[own] = np.median(samples.slowdown[~own])
    return predicted


def groups_of(samples: Samples) -> dict[str, NDArray[np.bool_]]:
    """Rows to report together: all, all but the largest source's, by class, GPU and source."""
    largest = np.argmax(np.bincount(samples.group))
    groups = {
        "all": np.ones(len(samples.slowdown), dtype=np.bool_),
        "all but the largest source": samples.group != largest,
    }
    for name in KERNEL_CLASSES:
        groups[f"class {name}"] = samples.kernel_class == name
    for gpu in sorted(set(samples.gpu)):
        groups[f"GPU {gpu}"] = samples.gpu == gpu
    for number, source in enumerate(samples.sources):
        groups[f"source {source}"] = samples.group == number
    return {name: rows for name, rows in groups.items() if rows.any()}


def report(samples: Samples) -> dict[str, dict[str, Any]]:
    """Scores as plain numbers: group, then predictor."""
    predicted = {"physical": samples.physical, "one factor": one_factor(samples)}
    return {
        group: {
            "n": int(rows.sum()),
            "by_time": weighted_by_time(samples, samples.slowdown, rows),
            **{name: score(samples, values, rows) for name, values in predicted.items()},
        }
        for group, rows in groups_of(samples).items()
    }


def error_record(samples: Samples, command: str) -> dict[str, Any]:
    """What ``overlap_errors.yaml`` says: provenance and errors."""
    scores = report(samples)
    return {
        "command": command,
        "sources": {
            name: int((samples.group == number).sum())
            for number, name in enumerate(samples.sources)
        },
        "rows_with_assumed_channels": int(samples.assumed.sum()),
        "residuals": {name: scores[name] for name in scores if not name.startswith("source")},
    }


def print_scores(scores: Mapping[str, Any]) -> None:
    """One table: hit rates at 5, 10, 15 %, RMSE and slowdown weighted by time."""
    from rich.console import Console
    from rich.table import Table

    names = ("physical", "one factor")
    headers = [f"{name}\n5/10/15 %, RMSE, by time" for name in names]
    table = Table("rows of", "n", "measured\nby time", *headers)
    for group, entry in scores.items():
        cells = []
        for name in names:
            hits = " ".join(f"{100 * hit:3.0f}" for hit in entry[name]["within_5_10_15_percent"])
            cells.append(f"{hits}  {entry[name]['rmse']:.2f}  {_shown(entry[name]['by_time'])}")
        table.add_row(group[:60], str(entry["n"]), _shown(entry["by_time"]), *cells)
    Console(width=160).print(table)


def _shown(slowdown: float | None) -> str:
    return "-" if slowdown is None else f"{slowdown:.3f}"


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = command_parser(
        "interference validate",
        "Hold predicted slowdowns of kernels and communication against measured ones: by class of "
        "kernel, GPU and source.",
        "trainscout interference validate slowdowns_h200.csv           # shows the errors\n"
        "trainscout interference validate overlap_slowdown.csv more.csv \\\n"
        "    --output simulators/laboratory/interference/overlap_errors.yaml",
    )
    parser.add_argument("tables", nargs="+", type=Path, help="CSV files of measured slowdowns")
    parser.add_argument("--gpus", type=Path, help="folder of GPU declarations")
    parser.add_argument("--output", type=Path, help="file to write the errors to")
    options = parser.parse_args(arguments)
    check_output("--output", options.output, options.tables)
    gpus = declared_gpus(options.gpus)
    samples = read_samples(options.tables, gpus)
    print_scores(report(samples))
    for reason, count in sorted(samples.skipped.items()):
        show_text(f"left out: {count} rows, {reason}\n")
    try:
        slowed = read_samples(options.tables, gpus, comm=True)
    except InputError:
        show_text("no row says how much kernels slow communication\n")
    else:
        for gpu, measured, physical in zip(
            slowed.gpu, slowed.slowdown, slowed.physical, strict=True
        ):
            line = f"communication on {gpu}: measured {measured:.2f}, physical {physical:.2f}\n"
            show_text(line)
    if options.output is not None:
        names = " ".join(table.name for table in options.tables)
        content = error_record(samples, f"trainscout interference validate {names}")
        text = yaml.safe_dump(content, sort_keys=False, width=100, default_flow_style=None)
        write_output("--output", options.output, text)
    return OK
