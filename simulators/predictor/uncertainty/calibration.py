"""Corrections to predictions, learned from a few measured runs on the user's own machines.

Written by ``trainscout calibrate``, used with ``simulator.calibration=FILE``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.errors import InputError, require_positive
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.uncertainty.features import Features

CORRECTIONS = ("compute_time", "network_time", "host_time")
LARGEST_FACTOR = 10.0
_FIELD = "simulator.calibration"


@dataclass(frozen=True)
class CalibrationRun:
    """A run that was calibrated on: what its prediction was like, and the logarithm of measured
    over predicted step time when the corrections were fitted without it."""

    features: Features
    log_residual: float


@dataclass(frozen=True)
class Calibration:
    """Factors on predicted times, for one GPU.

    ``compute_time`` multiplies the seconds of every kernel, ``network_time`` those of every
    communication that leaves a node, ``host_time`` the host's seconds per launch. ``runs`` is
    what they were learned from.
    """

    gpu: str
    compute_time: float = 1.0
    network_time: float = 1.0
    host_time: float = 1.0
    runs: tuple[CalibrationRun, ...] = ()

    @property
    def factors(self) -> tuple[float, float, float]:
        return self.compute_time, self.network_time, self.host_time

    @property
    def words(self) -> str:
        """The calibration in one line, for whoever reads a prediction made with it."""
        factors = ", ".join(
            f"{name.removesuffix('_time')} x {getattr(self, name):.3g}" for name in CORRECTIONS
        )
        return f"times calibrated on {len(self.runs)} runs: {factors}"

    def check(self) -> None:
        """Refuse factors that no machine explains.

        Raises:
            InputError: naming the field.
        """
        for name in CORRECTIONS:
            value = getattr(self, name)
            require_positive(f"{_FIELD}.{name}", value)
            if not 1 / LARGEST_FACTOR <= value <= LARGEST_FACTOR:
                allowed = f"{1 / LARGEST_FACTOR:g} to {LARGEST_FACTOR:g}"
                raise InputError(f"{_FIELD}.{name}", value, "is out of range", allowed)

    def check_gpu(self, gpu: Gpu) -> None:
        """Refuse another GPU than the one that was measured.

        Raises:
            InputError: naming both.
        """
        if gpu.name != self.gpu:
            problem = f"was made for {self.gpu}, and the question is about {gpu.name}"
            raise InputError(
                _FIELD,
                self.gpu,
                problem,
                f"runs of {gpu.name}: trainscout.simulators.laboratory.calibrate",
            )


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file that ``calibration_text`` wrote, checked.

    Raises:
        InputError: for a file that cannot be read or is no calibration.
    """
    given = read_yaml(path, _FIELD)
    try:
        calibration = _calibration(given)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        what = "a file that trainscout.simulators.laboratory.calibrate wrote"
        raise InputError(_FIELD, path, f"is not a calibration ({error})", what) from error
    calibration.check()
    return calibration


def calibration_text(calibration: Calibration, comments: Mapping[str, str]) -> str:
    """The calibration as YAML; ``comments`` go behind the field they are named after."""
    lines = [f"# {comments['header']}"] if "header" in comments else []
    for name in ("gpu", *CORRECTIONS):
        value = getattr(calibration, name)
        text = f"{name}: {value:.5g}" if isinstance(value, float) else f"{name}: {value}"
        lines.append(f"{text}  # {comments[name]}" if name in comments else text)
    lines.append("# Each run's prediction, and ln(measured / predicted) when fitted without it.")
    runs = [
        {name: _rounded(value) for name, value in _plain(run).items()} for run in calibration.runs
    ]
    lines.append(yaml.safe_dump({"runs": runs}, sort_keys=False, default_flow_style=None))
    return "\n".join(lines)


def _plain(run: CalibrationRun) -> dict[str, Any]:
    return {**dataclasses.asdict(run.features), "log_residual": run.log_residual}


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _calibration(given: Any) -> Calibration:
    _exactly(given, ("gpu", *CORRECTIONS, "runs"))
    return Calibration(
        gpu=str(given["gpu"]),
        runs=tuple(_run(run) for run in given["runs"]),
        **{name: float(given[name]) for name in CORRECTIONS},
    )


def _run(given: Any) -> CalibrationRun:
    _exactly(given, (*_FEATURES, "log_residual"))
    features = {name: kind(given[name]) for name, kind in _FEATURES.items()}
    for name in ("num_gpus", "layer_s"):
        require_positive(f"{_FIELD}.runs.{name}", features[name])
    return CalibrationRun(Features(**features), float(given["log_residual"]))


_KINDS = {"str": str, "int": int, "bool": bool, "float": float}
_FEATURES = {field.name: _KINDS[str(field.type)] for field in dataclasses.fields(Features)}


def _exactly(given: Any, names: tuple[str, ...]) -> None:
    if not isinstance(given, Mapping) or set(given) != set(names):
        found = sorted(map(str, given)) if isinstance(given, Mapping) else given
        raise ValueError(f"fields {found} instead of {', '.join(names)}")
