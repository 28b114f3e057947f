"""Which corrections a set of runs can tell apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from trainscout.simulators.laboratory.calibration.linear import PRIOR_SPREAD, information
from trainscout.simulators.laboratory.calibration.model import StepTimes, Vector
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.uncertainty.calibration import CORRECTIONS

# A correction whose doubling lengthens no run by this share is not seen by any of them.
LEAST_EFFECT = 0.03
# Runs must narrow down what is believed of a correction to this share, or say nothing about it.
LEAST_NARROWING = 0.5
# How many times better the best determined mix of corrections is than the worst.
LARGEST_CONDITION = 20.0
MIN_JOBS = 4
# Runs beyond the number of corrections, so that something is left to judge the fit by.
SPARE_JOBS = 2

_WORDS = {
    "compute_time": "kernel time",
    "network_time": "time on the network between nodes",
    "host_time": "the host's launch time",
}
_ADVICE = {
    "compute_time": "runs with larger micro-batches or models",
    "network_time": "runs on other numbers of nodes, or with other data-parallel sizes",
    "host_time": "runs with much smaller micro-batches or models",
}


@dataclass(frozen=True)
class Identified:
    """``fitted``: the corrections that the runs determine; ``fixed``: the others, each with the
    reason; ``effects`` (n, fitted): by how much a run's log time grows per log factor."""

    fitted: tuple[str, ...]
    fixed: Mapping[str, str]
    effects: Vector


def identify(times: StepTimes, wanted: Sequence[str]) -> Identified:
    """Hold the runs against what is to be fitted to them.

    Raises:
        InputError: when they determine nothing, are too few, or cannot tell two corrections
            apart.
    """
    nothing = np.zeros(len(CORRECTIONS))
    before = times.log_seconds(nothing)
    fixed = {name: "not asked for" for name in CORRECTIONS if name not in wanted}
    fitted: list[str] = []
    columns: list[Vector] = []
    for index, name in enumerate(CORRECTIONS):
        if name not in wanted:
            continue
        doubled = nothing.copy()
        doubled[index] = math.log(2)
        effect = (times.log_seconds(doubled) - before) / math.log(2)
        if effect.max() < LEAST_EFFECT:
            share = math.expm1(float(effect.max()) * math.log(2))
            fixed[name] = (
                f"not identifiable: {_WORDS[name]} twice as long would lengthen none of these "
                f"runs by more than {share:.1%}"
            )
        else:
            fitted.append(name)
            columns.append(effect)
    if not fitted:
        why = "; ".join(fixed.values())
        raise InputError("runs", len(before), f"determine no correction: {why}")
    _require_jobs(times, fitted, MIN_JOBS)
    _require_distinct(fitted, np.stack(columns, axis=1))
    while (vague := _vaguest(fitted, np.stack(columns, axis=1))) is not None:
        index, spread = vague
        name = fitted.pop(index)
        del columns[index]
        fixed[name] = (
            f"not identifiable: it has so little effect on these runs that they would leave it "
            f"open by +- {spread:.0%}"
        )
    _require_jobs(times, fitted, len(fitted) + SPARE_JOBS)
    return Identified(tuple(fitted), fixed, np.stack(columns, axis=1))


def _vaguest(fitted: Sequence[str], effects: Vector) -> tuple[int, float] | None:
    """The correction that the runs say least about and its spread; None when all are told."""
    if len(fitted) == 1:
        return None
    precision = information(fitted, effects, np.ones(len(effects)))
    spreads = np.sqrt(np.diag(np.linalg.inv(precision)))
    prior = np.array([PRIOR_SPREAD[name] for name in fitted])
    index = int(np.argmax(spreads / prior))
    if spreads[index] <= LEAST_NARROWING * prior[index]:
        return None
    return index, float(spreads[index])


def _require_jobs(times: StepTimes, fitted: Sequence[str], least: int) -> None:
    if len(times.jobs) < least:
        raise InputError(
            "runs",
            len(times.jobs),
            f"is too few different runs to fit {', '.join(fitted)}",
            f"at least {least}, which differ in layout, micro-batch, model or number of GPUs",
        )


def _require_distinct(fitted: Sequence[str], effects: Vector) -> None:
    """Singular values of the effects, each correction's scaled to length one."""
    lengths = np.linalg.norm(effects, axis=0)
    directions = effects / lengths
    values = np.linalg.svd(directions, compute_uv=False)
    if values[-1] * LARGEST_CONDITION >= values[0]:
        return
    cosines = {
        (one, other): float(abs(directions[:, one] @ directions[:, other]))
        for one, other in combinations(range(len(fitted)), 2)
    }
    one, other = max(cosines, key=lambda pair: cosines[pair])
    lesser = min((one, other), key=lambda index: lengths[index])
    raise InputError(
        "runs",
        f"{fitted[one]} and {fitted[other]}",
        "cannot be distinguished: both lengthen every run in the same proportion (singular values "
        + ", ".join(f"{value:.2g}" for value in values)
        + ")",
        f"add {_ADVICE[fitted[lesser]]}, or fit fewer with --corrections",
    )
