"""Factors that a profile, or ``trainscout measure``, states of a GPU's kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.io.measurements import read_measurements
from trainscout.simulators.predictor.question.errors import InputError
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
    """Measured over priced seconds of several classes; None: none has a price."""
    try:
        measured_s, priced_s = (
            sum(float(each[name]) for each in classes.values())
            for name in ("measured_s", "priced_s")
        )
    except (KeyError, TypeError, ValueError) as error:
        problem = f"is damaged ({error})"
        raise InputError(OPTION, path, problem, "a file as it was written") from None
    if not priced_s or not measured_s:
        return None
    factor = measured_s / priced_s
    if not 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
        problem = f"has kernels that take {factor:.3g} times their price"
        raise InputError(OPTION, path, problem, f"up to {LARGEST_FACTOR:g} times, either way")
    return factor
