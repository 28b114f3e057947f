"""Factors that a profile, or ``trainscout measure``, states of a GPU's kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainscout.simulators.predictor.io.measurements import read_measurements
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.uncertainty.applied import weight
from trainscout.simulators.predictor.uncertainty.calibration import (
    LARGEST_FACTOR,
    Calibration,
    Factors,
)

OPTION = "--from-profile"
_COMPUTE = ("gemm", "attention", "convolution")


def read_profiled(path: Path) -> Calibration:
    """What such a file states of its GPU: seconds measured over priced of products and attention,
    and of kernels that stream memory, all shapes together.

    Raises:
        InputError: for a file that cannot be read, or in which no kernel is beside its price.
    """
    found = read_measurements(OPTION, path)
    classes, gpu = found.get("classes"), found.get("gpu")
    if not isinstance(classes, Mapping) or not isinstance(gpu, str):
        raise InputError(OPTION, path, "lacks classes or gpu", "a file as it was written")
    compute = {name: each for name, each in classes.items() if name in _COMPUTE}
    streaming = {name: each for name, each in classes.items() if name not in _COMPUTE}
    stated = {
        name: factor
        for name, of in (("compute_time", compute), ("memory_time", streaming))
        if (factor := _factor(path, of)) is not None
    }
    if not stated:
        raise InputError(OPTION, path, "has no kernel with a price", "kernels of known shapes")
    calibration = Calibration((gpu,), Factors(**stated), made=path.name)
    calibration.check()
    return calibration


def _factor(path: Path, classes: Mapping[str, Any]) -> float | None:
    """Measured over priced seconds of several classes, as far as one hardly errs by it with shapes
    that were not measured, by how much those measured differ; None: none has a price."""
    try:
        rows = np.array(
            [
                [float(each.get(name, 0.0)) for name in ("measured_s", "priced_s", "log_spread")]
                for each in classes.values()
            ]
        ).reshape(-1, 3)
    except (AttributeError, TypeError, ValueError) as error:
        problem = f"is damaged ({error})"
        raise InputError(OPTION, path, problem, "a file as it was written") from None
    measured_s, priced_s, spreads = rows[(rows[:, 0] > 0) & (rows[:, 1] > 0)].T
    if not len(priced_s):
        return None
    factor = float(measured_s.sum() / priced_s.sum())
    if not 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
        problem = f"has kernels that take {factor:.3g} times their price"
        raise InputError(OPTION, path, problem, f"up to {LARGEST_FACTOR:g} times, either way")
    apart = np.log(measured_s / priced_s / factor)
    unknown = np.average(spreads**2 + apart**2, weights=priced_s)
    applied: float = factor ** float(weight(np.log(factor), unknown))
    return applied
