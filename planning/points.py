"""A cell's answer as days and dollars; which cells are worth a look, and which meet a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trainscout.optimizer.objective import non_dominated
from trainscout.planning.answer import Best
from trainscout.planning.cells import Cell
from trainscout.planning.goodput import Goodput
from trainscout.planning.study import PREFERENCES, Target
from trainscout.simulators.predictor.uncertainty.fastest import Claim, claim


@dataclass(frozen=True)
class Point:
    """A cell that fits: its best recipe, and what the declared run takes with it.

    ``days`` are calendar days with failures, checkpoints and restarts; ``gpu_hours`` what is paid
    for; ``expected`` what to expect of a step that a search chose, None without an error bar, and
    ``days_interval`` its error bar carried over.
    """

    cell: Cell
    best: Best
    goodput: Goodput
    days: float
    gpu_hours: float
    usd: float

    @property
    def num_gpus(self) -> int:
        return self.cell.num_gpus

    @property
    def claim(self) -> Claim:
        return claim(self.cell.question.job(self.best.recipe), self.best.mfu)

    @property
    def days_interval(self) -> tuple[float, float] | None:
        if self.best.interval_s is None:
            return None
        low_s, high_s = self.best.interval_s
        per_second = self.days / self.best.step_time_s
        return low_s * per_second, high_s * per_second

    def meets(self, target: Target) -> bool:
        limits = ((self.days, target.days), (self.usd, target.usd), (self.num_gpus, target.gpus))
        return all(limit is None or value <= limit for value, limit in limits)


def make_point(cell: Cell, best: Best, goodput: Goodput) -> Point:
    """Days and dollars of a cell's run at its goodput."""
    question = cell.question
    days = question.training.tokens / best.tokens_per_s / goodput.share / 86400
    gpu_hours = days * 24 * cell.num_gpus
    return Point(cell, best, goodput, days, gpu_hours, gpu_hours * question.gpu.price_usd_per_hour)


def at_price(point: Point, price_usd_per_hour: float) -> Point:
    """The same run, its GPUs at another price."""
    question = point.cell.question
    gpu = replace(question.gpu, price_usd_per_hour=price_usd_per_hour)
    cell = replace(point.cell, question=replace(question, gpu=gpu))
    return make_point(cell, point.best, point.goodput)


def front(points: Sequence[Point]) -> list[Point]:
    """Those of one model that no other beats in GPUs, days and dollars at once, in their order."""
    losses = [(float(point.num_gpus), point.days, point.usd) for point in points]
    return [points[index] for index in sorted(non_dominated(losses))]


def preferred(points: Sequence[Point], prefer: str) -> Point | None:
    """The cheapest, fastest or smallest; the cheaper of equal ones, the first of those."""
    measures = {
        "cheapest": lambda point: (point.usd, point.days),
        "fastest": lambda point: (point.days, point.usd),
        "smallest": lambda point: (point.num_gpus, point.usd),
    }
    return min(points, key=measures[prefer], default=None)


@dataclass(frozen=True)
class TargetAnswer:
    """The cells that meet one target, in their order, and the best of them by each preference."""

    name: str
    target: Target
    meeting: tuple[Point, ...]
    best: Mapping[str, Point | None]


def answer_target(name: str, target: Target, points: Sequence[Point]) -> TargetAnswer:
    meeting = tuple(point for point in points if point.meets(target))
    best = {prefer: preferred(meeting, prefer) for prefer in PREFERENCES}
    return TargetAnswer(name, target, meeting, best)
