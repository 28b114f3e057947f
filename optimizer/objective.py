"""What "best" means: one figure of the prediction, or several and their Pareto front."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.errors import InputError, require_choice
from trainscout.simulators.predictor.question.job import Job

Floats = NDArray[np.float64]


def _cost_of_run_usd(job: Job, step_s: Floats) -> Floats:
    steps = job.training.tokens / job.tokens_per_step
    return step_s * job.world_size * job.gpu.price_usd_per_hour / 3600 * steps


def _mfu(job: Job, step_s: Floats) -> Floats:
    return step_flops(job).model / (job.gpu.peak(job.precision) * job.world_size * step_s)


@dataclass(frozen=True)
class Measure:
    """One figure to optimise. ``at`` gives it for a job and step times in seconds, all else
    equal: ``minimise`` figures in proportion, the others inversely; None when the step time does
    not move it."""

    read: Callable[[Prediction], float]
    minimise: bool
    unit: str
    at: Callable[[Job, Floats], Floats] | None


MEASURES: dict[str, Measure] = {
    "cost": Measure(lambda p: p.cost_of_run_usd, True, "USD per run", _cost_of_run_usd),
    "step_time": Measure(lambda p: p.step_time_s, True, "s", lambda _, step_s: step_s),
    "tokens_per_s": Measure(
        lambda p: p.tokens_per_s,
        False,
        "tokens/s",
        lambda job, step_s: job.tokens_per_step / step_s,
    ),
    "mfu": Measure(lambda p: p.mfu, False, "fraction of peak", _mfu),
    "memory": Measure(lambda p: float(p.memory.peak_reserved_bytes), True, "bytes", None),
}


@dataclass(frozen=True)
class Objective:
    """One or more measures by name; values are in their own units and directions."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.names:
            raise InputError("objective.names", [], "is empty", MEASURES)
        for name in self.names:
            require_choice("objective.names", name, MEASURES)
        if len(set(self.names)) != len(self.names):
            raise InputError("objective.names", list(self.names), "repeats a name", "each once")

    @property
    def measures(self) -> tuple[Measure, ...]:
        return tuple(MEASURES[name] for name in self.names)

    def values(self, prediction: Prediction) -> tuple[float, ...]:
        """The objective values of a prediction.

        Raises:
            ArithmeticError: when one is not finite, which no correct simulator returns.
        """
        values = tuple(float(measure.read(prediction)) for measure in self.measures)
        for name, value in zip(self.names, values, strict=True):
            if not math.isfinite(value):
                raise ArithmeticError(f"the predicted {name} is {value}")
        return values

    def losses(self, values: Sequence[float]) -> tuple[float, ...]:
        """Values turned so that smaller is better, in the order of ``names``."""
        return tuple(
            value if measure.minimise else -value
            for value, measure in zip(values, self.measures, strict=True)
        )

    def time_like(self, values: Sequence[float]) -> float | None:
        """The single objective as a quantity proportional to the step time.

        None when there are several objectives or the one is not driven by the step time.
        """
        (measure, *others) = self.measures
        if others or measure.at is None or values[0] <= 0:
            return None
        return values[0] if measure.minimise else 1.0 / values[0]


def non_dominated(losses: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the Pareto-optimal rows (smaller is better), in ascending order of loss.

    Among equal rows only the first is kept.
    """
    front: list[int] = []
    # In lexicographic order a row can only be dominated by rows before it.
    for index in sorted(range(len(losses)), key=lambda i: (tuple(losses[i]), i)):
        row = losses[index]
        if not any(all(a <= b for a, b in zip(losses[kept], row, strict=True)) for kept in front):
            front.append(index)
    return front
