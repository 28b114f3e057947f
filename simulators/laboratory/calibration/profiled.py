"""Factors that a profile, or ``trainscout measure``, states of a machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainscout.simulators.predictor.io.measurements import read_measurements
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.uncertainty.applied import weight
from trainscout.simulators.predictor.uncertainty.calibration import LARGEST_FACTOR, Calibration
from trainscout.simulators.predictor.uncertainty.factors import FACTORS, Factors

OPTION = "--from-profile"
_COMPUTE = ("gemm", "attention", "convolution")
_COMMUNICATION = ("collective", "point_to_point")
Row = tuple[float, float, float]
"""Seconds measured and priced, and how much their ratio scatters (as ``ObservedClass``)."""


def read_profiled(path: Path) -> Calibration:
    """What such a file states of its machine: how much longer than priced took products and
    attention, kernels that stream memory, launches that the device waited for, collectives inside
    a node and between nodes; and by how much kernels were slowed beside communication. Each as far
    as one hardly errs by it with what was not measured, by how much that which was differs.

    Raises:
        InputError: for a file that cannot be read, or in which nothing is beside its price.
    """
    found = read_measurements(OPTION, path)
    gpu = found.get("gpu")
    if not isinstance(found.get("classes"), Mapping) or not isinstance(gpu, str):
        raise InputError(OPTION, path, "lacks classes or gpu", "a file as it was written")
    parts: dict[str, list[Row]] = {name: [] for name in FACTORS}
    try:
        for name, measured, priced, spread in _rows(found):
            row = float(measured), float(priced or 0.0), float(spread)
            if row[0] > 0 and row[1] > 0:
                parts[name].append(row)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"is damaged ({error})"
        raise InputError(OPTION, path, problem, "a file as it was written") from None
    stated, strange = {}, []
    for name, rows in parts.items():
        times = sum(row[0] for row in rows) / sum(row[1] for row in rows) if rows else None
        if times is not None and 1 / LARGEST_FACTOR <= times <= LARGEST_FACTOR:
            stated[name] = _factor(name, rows)
        elif times is not None:
            strange.append(f"{name.removesuffix('_time')} takes {times:.3g} times its price")
    if not stated:
        problem = f"states nothing: {', '.join(strange) or 'nothing in it has a price'}"
        allowed = f"kernels of known shapes, up to {LARGEST_FACTOR:g} times their price either way"
        raise InputError(OPTION, path, problem, allowed)
    left = f" (left out: {', '.join(strange)})" if strange else ""
    calibration = Calibration((gpu,), Factors(**stated), made=f"{path.name}{left}")
    calibration.check()
    return calibration


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any, Any]]:
    """Every row, under the name of its factor."""
    # A step beside its prediction says what its framework launches, too.
    compared = found.get("compared") or {}
    for name, each in (compared or found["classes"]).items():
        if name not in _COMMUNICATION:
            part = "compute_time" if name in _COMPUTE else "memory_time"
            priced_s = each["predicted_s"] if compared else each.get("priced_s", 0.0)
            yield part, each.get("measured_s", 0.0), priced_s, each.get("log_spread", 0.0)
    host = found.get("host") or {}
    yield "host_time", host.get("measured_s") or 0.0, host.get("predicted_s"), 0.0
    for each in found.get("collectives") or ():
        if "priced_s" not in each:
            continue  # of trainscout measure: a curve, for cluster.measured_collectives
        measured_s = each["measured_s"]
        if each["waits_included"]:
            # No longer than that: what others were waited for is not the network's.
            measured_s = min(measured_s, each["priced_s"])
        part = "network_time" if each["leaves_node"] else "node_time"
        yield part, each["calls"] * measured_s, each["calls"] * each["priced_s"], 0.0
    overlap = found.get("overlap") or {}
    if overlap.get("slowdown") and overlap.get("priced"):
        excess = overlap["slowdown"] - 1, overlap["priced"] - 1
        yield "overlap_time", *excess, overlap.get("log_spread", 0.0)


def _factor(name: str, rows: list[Row]) -> float:
    """Measured over priced, as much of it as is applied."""
    measured_s, priced_s, spreads = np.array(rows).T
    factor = float(measured_s.sum() / priced_s.sum())
    apart = np.log(measured_s / priced_s / factor)
    unknown = np.average(spreads**2 + apart**2, weights=priced_s)
    if name in ("node_time", "network_time"):
        # Sizes differ from each other as from those that were not measured; one says nothing.
        others = (priced_s**2).sum() / priced_s.sum() ** 2
        unknown = unknown / (1 - others) if len(rows) > 1 else np.inf
    applied: float = factor ** float(weight(np.log(factor), unknown))
    return applied
