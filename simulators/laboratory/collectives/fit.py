"""Fit the coefficients of ``execution.py`` to nccl-tests results.

    trainscout collectives fit results.csv
    trainscout collectives fit results.csv --output conf/transport \\
        --errors simulators/laboratory/collectives/fit_errors.yaml

``results.csv`` is a table as ``measurements.py`` reads it; ``machines.yaml`` says which of its
clusters are fitted to (``train``) and which first judge the fit (``validation``). The first
command shows what the second writes. In the folder, the ``fitted`` part of every transport:

* the coefficients, from both sets, and how many rows and which clusters stand behind each;
* per cluster and size band the median error as fitted, and with the cluster left out of the fit.

``--errors`` gets the averages of those errors over clusters and bands, whatever the transport:
what a cluster that was fitted to, and one that was not, can expect.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from trainscout.simulators.laboratory.score import medians
from trainscout.simulators.predictor.collectives.measured import Figure, corrected_s
from trainscout.simulators.predictor.collectives.transport import FABRICS, load
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.output import check_output, show_text, write_output
from trainscout.simulators.predictor.question.errors import InputError

from .least_squares import Fit, Row, calls_of, fit, predict_us, row_of, rows_of
from .measurements import BAND_NAMES, Measurement, read_table, size_band

SIZES = (8 << 10, 256 << 20)
SWEPT = tuple((8 << 10) * 4**power for power in range(9))
"""Bytes; the measured sizes nearest to them are told. ``nccl-tests -b 8K -e 512M -f 4``."""

TOLD: dict[str, tuple[tuple[int, ...], bool]] = {
    "one_size": ((1 << 30,), False),
    "large_sizes": ((16 << 20, 1 << 30), False),
    "two_sizes": (SIZES, False),
    "swept": (SWEPT, False),
    "swept_by_nodes": (SWEPT, True),
}
"""By name: sizes that are told of each collective, on each number of a node's GPUs, and whether on
each number of nodes or on the fewest."""


def _group(call: Measurement, by_nodes: bool) -> tuple[object, ...]:
    """Calls that share what is told of them."""
    if call.nodes == 1:
        return call.kind, call.communicator.size
    return call.kind, f"{call.nodes if by_nodes else 'several'} nodes"


def figures(result: Fit, calls: Sequence[Measurement]) -> list[tuple[Measurement, Figure]]:
    """A cluster's calls beside what ``result``, fitted to others, says of them."""
    found = []
    for call in calls:
        least = row_of(replace(call, size_bytes=1))
        least_s, price_s = (predict_us(result, row) * 1e-6 for row in (least, row_of(call)))
        found.append((call, Figure(call.size_bytes, least_s, price_s, call.seconds)))
    return found


def anchored_errors(
    own: Sequence[tuple[Measurement, Figure]], told: str
) -> list[tuple[Measurement, float]]:
    """Absolute relative error of each of a cluster's calls but those that were told from."""
    sizes, by_nodes = TOLD[told]
    groups: dict[object, list[tuple[Measurement, Figure]]] = defaultdict(list)
    for call, figure in own:
        groups[_group(call, by_nodes)].append((call, figure))
    errors: list[tuple[Measurement, float]] = []
    for members in groups.values():
        anchors = _anchors(members, sizes)
        told_from = sorted({figure.bytes: figure for _, figure in anchors}.values())
        known = [call for call, _ in anchors]
        for call, figure in members:
            if call not in known:
                found_s = corrected_s(figure, told_from)
                errors.append((call, abs(found_s / figure.measured_s - 1)))
    return errors


def _anchors(
    members: Sequence[tuple[Measurement, Figure]], sizes: Sequence[int]
) -> list[tuple[Measurement, Figure]]:
    """One test at the sizes nearest to those asked for, on the fewest nodes and the most GPUs."""

    def test(call: Measurement) -> tuple[int, int]:
        return call.nodes, -call.communicator.size

    chosen = min(test(call) for call, _ in members)
    same = [each for each in members if test(each[0]) == chosen]
    return [min(same, key=lambda each: abs(math.log(each[0].size_bytes / size))) for size in sizes]


TRANSPORTS = ("nvlink", "pcie", *FABRICS)

Errors = dict[tuple[str, str, str], float]
"""By transport, cluster and band the median absolute error there."""
FEWEST_ROWS = 7  # As many as an algorithm has coefficients.


def errors_of(result: Fit, rows: Sequence[Row]) -> Errors:
    """Median absolute relative error of each transport, cluster and size band."""
    return medians(
        ((row.transport, *_cell(row)), predict_us(result, row) / row.time_us - 1) for row in rows
    )


def left_out(rows: Sequence[Row]) -> Iterator[tuple[Fit, list[Row]]]:
    """The fit to all other clusters, and the rows of each."""
    for cluster in sorted({row.cluster_id for row in rows}):
        others = fit([row for row in rows if row.cluster_id != cluster])
        yield others, [row for row in rows if row.cluster_id == cluster]


def _cell(row: Row | Measurement) -> tuple[str, str]:
    return row.cluster_id, size_band(row.size_bytes)


def _compared(result: Fit, rows: Sequence[Row]) -> list[tuple[Row, float]]:
    """Relative error of each row."""
    return [(row, predict_us(result, row) / row.time_us - 1) for row in rows]


def averages(measurements: Sequence[Measurement]) -> dict[str, dict[str, Any]]:
    """Errors per cluster and size band, averaged over them: in sample and out of it.

    ``shipped``: of the fit to all clusters, on them; ``train`` and ``validation``: of the fit to
    the training clusters, on both sets; ``left_out``: of each cluster under the fit to the others;
    those of ``TOLD``: the same, told so much of the cluster.
    """
    train, validation = rows_of(measurements, "train"), rows_of(measurements, "validation")
    everything = train + validation
    from_train = fit(train)
    unknown: list[tuple[Row, float]] = []
    told: dict[str, list[tuple[Measurement, float]]] = {name: [] for name in TOLD}
    for others, own in left_out(everything):
        unknown += _compared(others, own)
        compared = figures(others, calls_of(measurements, {row.cluster_id for row in own}))
        for name, errors in told.items():
            errors += anchored_errors(compared, name)
    errors_of_fits: dict[str, Sequence[tuple[Row | Measurement, float]]] = {
        "shipped": _compared(fit(everything), everything),
        "train": _compared(from_train, train),
        "validation": _compared(from_train, validation),
        "left_out": unknown,
        **told,
    }
    return {name: average(errors) for name, errors in errors_of_fits.items()}


def average(errors: Iterable[tuple[Row | Measurement, float]]) -> dict[str, Any]:
    """The mean of medians per cluster and size band, over those of each band, over calls between
    nodes and over all; every cluster and band counts alike."""
    errors = list(errors)
    cells = medians((_cell(call), off) for call, off in errors)
    between = medians((_cell(call), off) for call, off in errors if call.nodes > 1)
    return {
        "clusters": len({cluster for cluster, _ in cells}),
        "by_size_band": _by_band(cells),
        "between_nodes": round(float(np.mean(list(between.values()))), 3) if between else None,
        "all": round(float(np.mean(list(cells.values()))), 3),
    }


def documents(measurements: Sequence[Measurement], command: str) -> dict[str, dict[str, Any]]:
    """The ``fitted`` part of each transport's file; ``command`` is what it was made with."""
    everything = rows_of(measurements, "train") + rows_of(measurements, "validation")
    result = fit(everything)
    fitted = errors_of(result, everything)
    unknown: Errors = {}
    for others, own in left_out(everything):
        unknown |= errors_of(others, own)
    return {
        name: {
            "command": command,
            "provenance": (
                "public nccl-tests results of the clusters named, grades A and B; coefficients "
                "with 0 rows are InfiniBand's or NCCL's own constants, shifted as the "
                "transport's other measurements say, or without any those of other fabrics"
            ),
            "coefficients": _coefficients(name, result),
            "errors": _errors(name, fitted, unknown),
        }
        for name in TRANSPORTS
    }


def _coefficients(transport: str, result: Fit) -> dict[str, dict[str, Any]]:
    return {
        key: {
            "terms": {name: float(f"{value:.4g}") for name, value in terms.items()},
            "rows": result.rows[owner, key],
            "nodes": result.nodes[owner, key],
            "clusters": result.clusters[owner, key],
        }
        for (owner, key), terms in sorted(result.terms.items())
        if owner == transport
    }


def _errors(transport: str, fitted: Errors, unknown: Errors) -> dict[str, Any]:
    """Each cluster's errors by band, in the order of the bands."""
    document: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for cell in sorted(fitted, key=lambda cell: (cell[1], BAND_NAMES.index(cell[2]))):
        if cell[0] == transport:
            errors = {"fitted": fitted[cell], "left_out": unknown[cell]}
            document[cell[1]][cell[2]] = {name: round(off, 3) for name, off in errors.items()}
    return dict(document)


def _by_band(cells: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """The mean over the clusters of each band."""
    bands: dict[str, list[float]] = defaultdict(list)
    for (_, band), error in cells.items():
        bands[band].append(error)
    return {band: round(float(np.mean(bands[band])), 3) for band in BAND_NAMES if band in bands}


def check_rows(measurements: Sequence[Measurement]) -> None:
    """Refuse a table that would replace what is known by defaults.

    Raises:
        InputError: without rows of both sets of clusters, with too few rows of a transport, or
            with none of one that has been measured.
    """
    counts: Counter[str] = Counter()
    for part in ("train", "validation"):
        rows = rows_of(measurements, part)
        if not rows:
            problem = f"are too few: none is of a {part} cluster of machines.yaml"
            raise InputError("rows", len(measurements), problem)
        counts.update(row.transport for row in rows if row.usable)
    for name in TRANSPORTS:
        if counts[name] < FEWEST_ROWS and (counts[name] or _measured(name)):
            problem = f"are too few of {name} to fit it"
            raise InputError("rows", counts[name], problem, f"at least {FEWEST_ROWS}")


def _measured(transport: str) -> bool:
    """Whether the present coefficients of a transport come from measurements."""
    entries = load(transport).get("fitted", {}).get("coefficients", {}).values()
    return any(entry["rows"] for entry in entries)


def write(fitted: Mapping[str, Mapping[str, Any]], directory: Path) -> None:
    """Write each transport's file with a new ``fitted`` part, each file whole or not at all.

    Raises:
        InputError: for a folder that cannot be written.
    """
    for name, part in fitted.items():
        write_output("--output", directory / f"{name}.yaml", _text({**load(name), "fitted": part}))


def _text(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False, width=99)


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = command_parser(
        "collectives fit",
        "Fit the coefficients that price NCCL's collectives to nccl-tests results.",
        "trainscout collectives fit results.csv       # shows what --output writes\n"
        "trainscout collectives fit results.csv --output conf/transport",
    )
    parser.add_argument("results", type=Path, help="CSV of nccl-tests rows")
    parser.add_argument("--output", type=Path, help="folder of transports to write; default: show")
    parser.add_argument("--errors", type=Path, help="file to write the averaged errors to")
    options = parser.parse_args(arguments)
    if options.output is not None:
        for name in TRANSPORTS:
            check_output("--output", options.output / f"{name}.yaml", [options.results])
    check_output("--errors", options.errors, [options.results])
    measurements, _ = read_table(options.results)
    check_rows(measurements)
    command = _command(options)
    fitted, errors = documents(measurements, command), averages(measurements)
    if options.output is not None:
        write(fitted, options.output)
    if options.errors is not None:
        write_output("--errors", options.errors, _text({"command": command, "errors": errors}))
    shown = fitted if options.output is None else {}
    show_text(_text({**shown, "errors": errors}))
    return OK


def _command(options: argparse.Namespace) -> str:
    # Where a table lies says nothing to a reader; its name does.
    words = ["trainscout", "collectives", "fit", options.results.name]
    for option, path in (("--output", options.output), ("--errors", options.errors)):
        words += [] if path is None else [option, str(path)]
    return shlex.join(words)
