"""How throughput per GPU changes with the number of GPUs, and which part of the step bends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainscout.planning.points import Point

# Smaller losses are not worth a reason.
_NOTABLE_LOSS = 0.005


@dataclass(frozen=True)
class ScalingPoint:
    """One size of a curve.

    ``efficiency`` is tokens/s per GPU against the smallest size that fits. What is lost is GPU
    time a token more than there: ``part`` of the step grew most, and ``share_of_growth`` is its
    share of all that grew (None for both: nothing notable is lost). ``batch_limited``: each
    replica has fewer micro-batches than four for each pipeline stage, too few to fill the
    pipeline, or only one.
    """

    point: Point
    efficiency: float
    part: str | None
    share_of_growth: float | None
    batch_limited: bool


@dataclass(frozen=True)
class ScalingCurve:
    """One model on one cluster and fabric, smallest size first."""

    model: str
    cluster: str
    fabric: str
    points: tuple[ScalingPoint, ...]


def scaling_curves(points: Sequence[Point]) -> list[ScalingCurve]:
    """A curve for each cluster and fabric of two sizes or more, in their order."""
    series: dict[tuple[str, str, str], list[Point]] = {}
    for point in points:
        cell = point.cell
        series.setdefault((cell.model, cell.cluster, cell.fabric), []).append(point)
    return [
        ScalingCurve(*name, _curve(sorted(sizes, key=lambda point: point.num_gpus)))
        for name, sizes in series.items()
        if len(sizes) > 1
    ]


def _curve(sizes: Sequence[Point]) -> tuple[ScalingPoint, ...]:
    first = sizes[0]
    start = _gpu_s_per_token(first)
    curve = []
    for point in sizes:
        now = _gpu_s_per_token(point)
        efficiency = sum(start.values()) / sum(now.values())
        grown = {part: now[part] - start.get(part, 0.0) for part in now}
        part = max(grown, key=lambda name: grown[name])
        growth = sum(value for value in grown.values() if value > 0)
        notable = efficiency < 1 - _NOTABLE_LOSS
        curve.append(
            ScalingPoint(
                point,
                efficiency,
                part if notable else None,
                grown[part] / growth if notable else None,
                notable and _batch_limited(point),
            )
        )
    return tuple(curve)


def _gpu_s_per_token(point: Point) -> dict[str, float]:
    """Seconds of a GPU for one token, by part of the step."""
    training, model = point.cell.question.training, point.cell.question.model
    sequence_length = training.sequence_length or model.sequence_length
    tokens = training.global_batch_size * training.sequences_per_sample * sequence_length
    return {
        part: seconds * point.num_gpus / tokens for part, seconds in point.best.breakdown_s.items()
    }


def _batch_limited(point: Point) -> bool:
    stages = point.best.recipe.pp
    return point.best.micro_batches < (4 * stages if stages > 1 else 2)
