"""Fit the coefficients of ``execution.py`` to nccl-tests results.

    python -m simulators.collectives.fit results.csv

``results.csv`` is a table as ``describe.py`` reads it; ``machines.yaml`` says which of its
clusters are fitted to (``train``) and which first judge the fit (``validation``). The ``fitted``
part of every file of ``conf/transport`` is rewritten:

* the coefficients, from both sets, and how many rows and which clusters stand behind each;
* per cluster and size band the median error three ways: as fitted, with the cluster left out of
  the fit, and for a validation cluster from the training clusters alone.

``fit_errors.yaml`` beside this file has the averages of those errors over clusters and bands,
whatever the transport: what a cluster that was fitted to, and one that was not, can expect.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from simulators.collectives.describe import Measurement, read_table
from simulators.collectives.least_squares import Fit, Row, fit, predict_us, rows_of
from simulators.collectives.size_bands import BAND_NAMES, size_band
from simulators.collectives.transport import DIRECTORY, FABRICS, load
from simulators.errors import InputError

TRANSPORTS = ("nvlink", "pcie", *FABRICS)

# (transport, cluster, band) and the median absolute error there.
Errors = dict[tuple[str, str, str], float]
# (cluster, band) and the same.
Cells = dict[tuple[str, str], float]
FIT_ERRORS = Path(__file__).with_name("fit_errors.yaml")


def errors_of(result: Fit, rows: Sequence[Row]) -> Errors:
    """Median absolute relative error of each transport, cluster and size band."""
    cells: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        cell = (row.transport, row.cluster_id, size_band(row.size_bytes))
        cells[cell].append(abs(predict_us(result, row) / row.time_us - 1))
    return {cell: float(np.median(errors)) for cell, errors in cells.items()}


def left_out_errors(rows: Sequence[Row]) -> Errors:
    """The errors of each cluster under the fit to all the others."""
    found: Errors = {}
    for cluster in sorted({row.cluster_id for row in rows}):
        others = fit([row for row in rows if row.cluster_id != cluster])
        found |= errors_of(others, [row for row in rows if row.cluster_id == cluster])
    return found


def _cells(result: Fit, rows: Sequence[Row]) -> Cells:
    """Median absolute relative error of each cluster and size band, over all transports."""
    cells: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        error = abs(predict_us(result, row) / row.time_us - 1)
        cells[row.cluster_id, size_band(row.size_bytes)].append(error)
    return {cell: float(np.median(errors)) for cell, errors in cells.items()}


def averages(measurements: Sequence[Measurement]) -> dict[str, dict[str, Any]]:
    """Errors per cluster and size band, averaged over them: in sample and out of it.

    ``shipped``: of the fit to all clusters, on them; ``train`` and ``validation``: of the fit to
    the training clusters, on both sets; ``left_out``: of each cluster under the fit to the others.
    """
    train, validation = rows_of(measurements, "train"), rows_of(measurements, "validation")
    everything = train + validation
    from_train = fit(train)
    left_out: Cells = {}
    for cluster in sorted({row.cluster_id for row in everything}):
        others = fit([row for row in everything if row.cluster_id != cluster])
        left_out |= _cells(others, [row for row in everything if row.cluster_id == cluster])
    cells = {
        "shipped": _cells(fit(everything), everything),
        "train": _cells(from_train, train),
        "validation": _cells(from_train, validation),
        "left_out": left_out,
    }
    return {name: average(found) for name, found in cells.items()}


def average(cells: Cells) -> dict[str, Any]:
    """The mean over all cells and over those of each band; every cell counts alike."""
    bands: dict[str, list[float]] = defaultdict(list)
    for (_, band), error in cells.items():
        bands[band].append(error)
    return {
        "clusters": len({cluster for cluster, _ in cells}),
        "by_size_band": {
            band: round(float(np.mean(bands[band])), 3) for band in BAND_NAMES if band in bands
        },
        "all": round(float(np.mean(list(cells.values()))), 3),
    }


def documents(measurements: Sequence[Measurement], results_name: str) -> dict[str, dict[str, Any]]:
    """The ``fitted`` part of each transport's file."""
    train, validation = rows_of(measurements, "train"), rows_of(measurements, "validation")
    everything = train + validation
    result = fit(everything)
    fitted, left_out = errors_of(result, everything), left_out_errors(everything)
    from_train = errors_of(fit(train), validation)
    return {
        name: {
            "command": f"python -m simulators.collectives.fit {results_name}",
            "provenance": (
                "public nccl-tests results of the clusters named, grades A and B; coefficients "
                "with 0 rows are InfiniBand's or NCCL's own constants, shifted as the "
                "transport's other measurements say"
            ),
            "coefficients": _coefficients(name, result),
            "errors": _errors(name, fitted, left_out, from_train),
            "left_out_error": _by_band(name, left_out),
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


def _errors(
    transport: str, fitted: Errors, left_out: Errors, from_train: Errors
) -> dict[str, Any]:
    """Each cluster's errors by band, in the order of the bands."""
    document: dict[str, dict[str, dict[str, float]]] = {}
    for cluster in sorted({name for owner, name, _ in fitted if owner == transport}):
        bands = {}
        for band in BAND_NAMES:
            cell = (transport, cluster, band)
            if cell in fitted:
                bands[band] = {"fitted": fitted[cell], "left_out": left_out[cell]}
                if cell in from_train:
                    bands[band]["from_train"] = from_train[cell]
        document[cluster] = {
            band: {name: round(value, 3) for name, value in errors.items()}
            for band, errors in bands.items()
        }
    return document


def _by_band(transport: str, left_out: Errors) -> dict[str, float]:
    """What a cluster that was not fitted to can expect: the mean over clusters."""
    bands: dict[str, list[float]] = defaultdict(list)
    for (owner, _, band), error in left_out.items():
        if owner == transport:
            bands[band].append(error)
    return {band: round(float(np.mean(bands[band])), 3) for band in BAND_NAMES if band in bands}


def write(fitted: Mapping[str, Mapping[str, Any]], directory: Path = DIRECTORY) -> None:
    """Replace the ``fitted`` part of each transport's file, each file whole or not at all."""
    for name, part in fitted.items():
        _write_whole(directory / f"{name}.yaml", {**load(name), "fitted": part})


def _write_whole(target: Path, document: Mapping[str, Any]) -> None:
    temporary = target.with_suffix(".tmp")
    text = yaml.safe_dump(document, sort_keys=False, width=99)
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(target)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 2 for a table that cannot be used."""
    parser = argparse.ArgumentParser(description="Fit the collective coefficients.")
    parser.add_argument("results", type=Path, help="CSV of nccl-tests rows")
    given = parser.parse_args(arguments)
    try:
        measurements, _ = read_table(given.results)
    except InputError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    write(documents(measurements, given.results.name))
    command = f"python -m simulators.collectives.fit {given.results.name}"
    _write_whole(FIT_ERRORS, {"command": command, "errors": averages(measurements)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
