"""How one's own machines differ from predictions, learned from a few measured runs on them.

Written by ``trainscout calibrate``, used with ``simulator.calibration=FILE`` or
``cluster.calibration=FILE``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.errors import (
    InputError,
    nearest_name,
    require_positive,
)
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job

from .applied import applied, part_logs, scale_logs
from .factors import AS_IT_COMES, FACTORS, SHARES, Factors
from .posterior import KINDS, Columns, Posterior, Traits, Vector, traits_of

LARGEST_FACTOR = 10.0
FIELD = "simulator.calibration"
CALIBRATED = "times calibrated"
"""How a prediction's assumption begins that says so."""


@dataclass(frozen=True)
class CalibrationRun:
    """A measured run beside its prediction. ``shares``: of its predicted step, in the order of
    ``factors.SHARES``."""

    name: str
    traits: Traits
    shares: tuple[float, ...]
    predicted_s: float
    measured_s: float

    @property
    def log_residual(self) -> float:
        return math.log(self.measured_s / self.predicted_s)


@dataclass(frozen=True)
class Calibration:
    """What is known of machines with these ``gpus``: ``factors`` as somebody stated them, and
    ``runs`` beside predictions made with those. ``share`` of what the runs say is applied, as much
    as speaks for runs left out. ``made`` says by what and from what."""

    gpus: tuple[str, ...]
    factors: Factors = AS_IT_COMES
    runs: tuple[CalibrationRun, ...] = ()
    made: str = ""
    share: float = 1.0

    @functools.cached_property
    def part_logs(self) -> Vector:
        """Logarithms of how much longer each of ``SHARES`` takes by what the runs say."""
        return self.share * part_logs(*_posterior(self.runs).known)

    @functools.cached_property
    def part_factors(self) -> Factors:
        """What multiplies the times of the parts of a step, besides ``scale_of``."""
        if not self.runs:
            return self.factors
        longer = dict(zip(SHARES, np.exp(self.part_logs), strict=True))
        return Factors(
            **{name: getattr(self.factors, name) * longer.get(name, 1.0) for name in FACTORS}
        )

    @functools.cached_property
    def _excess(self) -> float:
        """How much longer the runs are with longer parts than the sum of logarithms has it, which
        is all that the posterior knows, in the mean of their logarithms."""
        shares, parts = np.array([run.shares for run in self.runs]), self.part_logs
        return float(np.mean(np.log1p(shares @ np.expm1(parts)) - shares @ parts))

    def scale_of(self, job: Job) -> float:
        """What multiplies a job's whole step besides, always the same for the same traits."""
        return self.scales_of([traits_of(job)])[0]

    def scales_of(self, traits: Sequence[Traits]) -> list[float]:
        """``scale_of`` many jobs."""
        if not self.runs:
            return [1.0] * len(traits)
        return [
            math.exp(self.share * _log_scale(self.runs, each) - self._excess) for each in traits
        ]

    def factors_on(self, framework: Framework) -> Factors:
        """What multiplies times of work whose recipe is not known: that of the runs with this
        software, as they were in the middle."""
        like = [run for run in self.runs if run.traits.software == framework.software]
        scales = self.scales_of([run.traits for run in like or self.runs])
        middle = math.exp(float(np.median(np.log(scales)))) if scales else 1.0
        return self.part_factors.slowed(middle)

    def interval(self, job: Job, shares: Sequence[float], level: float) -> tuple[float, float]:
        """Ends of the interval that holds ``level`` of measured over predicted step times."""
        of = Columns.of([traits_of(job)], [shares])
        posterior = _posterior(self.runs)
        expected = self.share * float(applied(*posterior.known, of)[0])
        low, high = posterior.ends(of, level)
        return math.exp(float(low[0]) - expected), math.exp(float(high[0]) - expected)

    @property
    def words(self) -> str:
        """The calibration in one line, for whoever reads a prediction made with it."""
        found = self.part_factors
        longer = [
            f"{name.removesuffix('_time')} x {getattr(found, name):.3g}"
            for name in FACTORS
            if abs(getattr(found, name) - 1) >= 0.005
        ]
        if self.runs:
            scales = self.scales_of([run.traits for run in self.runs])
            low, high = min(scales), max(scales)
            ends = f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"
            longer.insert(0, f"whole steps x {ends}")
        known = f"on {len(self.runs)} runs" if self.runs else "as stated of the GPU"
        return f"{CALIBRATED} {known}: {', '.join(longer) or 'as they come'}"

    def check(self) -> None:
        """Refuse factors that no machine explains."""
        if not 0 < self.share <= 1:
            raise InputError(f"{FIELD}.share", self.share, "is no share", "above 0, at most 1")
        for name in FACTORS:
            value = getattr(self.factors, name)
            require_positive(f"{FIELD}.{name}", value)
            if not 1 / LARGEST_FACTOR <= value <= LARGEST_FACTOR:
                allowed = f"{1 / LARGEST_FACTOR:g} to {LARGEST_FACTOR:g}"
                raise InputError(f"{FIELD}.{name}", value, "is out of range", allowed)

    def check_gpu(self, gpu: Gpu) -> None:
        """Refuse another GPU than was measured."""
        if gpu.name not in self.gpus:
            known = ", ".join(self.gpus)
            problem = f"was made for {known}, and the question is about {gpu.name}"
            allowed = f"runs of {gpu.name}: trainscout calibrate"
            raise InputError(FIELD, known, problem, allowed)


def factors_of(calibration: Calibration | None) -> Factors:
    """What multiplies the times of the parts of a step, as calibrated or as it comes."""
    return AS_IT_COMES if calibration is None else calibration.part_factors


@functools.lru_cache(maxsize=8)
def _posterior(runs: tuple[CalibrationRun, ...]) -> Posterior:
    return Posterior(columns_of(runs), np.array([run.log_residual for run in runs]))


@functools.lru_cache(maxsize=100_000)
def _log_scale(runs: tuple[CalibrationRun, ...], traits: Traits) -> float:
    of = Columns.of([traits], [(0.0,) * len(SHARES)])
    return float(scale_logs(*_posterior(runs).known, of)[0])


def columns_of(runs: Sequence[CalibrationRun]) -> Columns:
    """Runs as the posterior takes them."""
    return Columns.of([run.traits for run in runs], [run.shares for run in runs])


def read_calibration(path: Path, field: str = FIELD) -> Calibration:
    """The calibration in a file that ``calibration_text`` wrote, checked.

    Raises:
        InputError: for a file that cannot be read or is no calibration.
    """
    content = read_yaml(path, field)
    try:
        calibration = _calibration(content)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        what = "a file that trainscout calibrate wrote"
        raise InputError(field, path, f"is not a calibration ({error})", what) from error
    calibration.check()
    return calibration


def calibration_text(calibration: Calibration, comments: Sequence[str] = ()) -> str:
    """The calibration as YAML, with lines of ``comments`` above it."""
    stated = {
        name: getattr(calibration.factors, name)
        for name in FACTORS
        if getattr(calibration.factors, name) != 1
    }
    runs = [
        {
            "name": run.name,
            "measured_s": _rounded(run.measured_s),
            "predicted_s": _rounded(run.predicted_s),
            "shares": {
                name: round(share, 4) for name, share in zip(SHARES, run.shares, strict=True)
            },
            **dataclasses.asdict(run.traits),
        }
        for run in calibration.runs
    ]
    content = {"gpu": list(calibration.gpus), "made": calibration.made, **stated}
    content |= {"share": calibration.share, "runs": runs}
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=160)
    return "".join(f"# {line}\n" for line in comments) + text


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _calibration(content: Any) -> Calibration:
    if not isinstance(content, Mapping):
        raise ValueError(f"{content!r} instead of fields")
    known = ("gpu", "made", *FACTORS, "share", "runs")
    for name in content:
        if name not in known:
            near = nearest_name(str(name), known)
            hint = "" if near is None else f", did you mean {near!r}?"
            raise ValueError(f"{name} is no field of it{hint}")
    gpus = content["gpu"]
    names = [gpus] if isinstance(gpus, str) else list(gpus)
    return Calibration(
        gpus=tuple(map(str, names)),
        factors=Factors(**{name: float(content[name]) for name in FACTORS if name in content}),
        runs=tuple(_run(run) for run in content["runs"]),
        share=float(content.get("share", 1.0)),
        made=str(content.get("made", "")),
    )


_TRAITS = {field.name: field.type for field in dataclasses.fields(Traits)}


def _run(content: Any) -> CalibrationRun:
    names = {"name", "measured_s", "predicted_s", "shares", *_TRAITS}
    if not isinstance(content, Mapping) or set(content) != names:
        found = sorted(map(str, content)) if isinstance(content, Mapping) else content
        raise ValueError(f"a run has the fields {found} instead of {', '.join(sorted(names))}")
    traits: dict[str, Any] = {
        name: str(content[name]) if kind == "str" else int(content[name])
        for name, kind in _TRAITS.items()
    }
    traits["experts"] = bool(traits["experts"])
    for name, value in traits.items():
        if name not in KINDS:
            require_positive(f"{FIELD}.runs.{name}", value)
    times = {name: float(content[name]) for name in ("measured_s", "predicted_s")}
    for name, seconds in times.items():
        require_positive(f"{FIELD}.runs.{name}", seconds)
    shares = tuple(float(content["shares"][name]) for name in SHARES)
    if not all(0 <= share <= 1.5 for share in shares):
        raise ValueError(f"shares of {content['name']} are not between 0 and 1")
    return CalibrationRun(str(content["name"]), Traits(**traits), shares, **times)
