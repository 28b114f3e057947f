"""How much an answer leans on what is only assumed, and at what price another GPU would win."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainscout.planning.goodput import Reliability, goodput
from trainscout.planning.points import Point, make_point
from trainscout.simulators.predictor.question.errors import InputError

PRICE_CHANGE = 0.2
MTBF_FACTOR = 2.0


@dataclass(frozen=True)
class Effect:
    """What one change makes of a model's answer; ``reason`` says why it has no days.

    ``recipe_changed``: the best recipe is another one; None where none was searched for.
    """

    name: str
    days: float | None
    usd: float | None
    num_gpus: int
    recipe_changed: bool | None = None
    reason: str | None = None


def effects_without_search(point: Point, reliability: Reliability) -> list[Effect]:
    """Of the price, the step's error bar and the failure rate: the recipe stays the best."""
    gpus, effects = point.num_gpus, []
    for change in (-PRICE_CHANGE, PRICE_CHANGE):
        name = f"price {change:+.0%}"
        effects.append(Effect(name, point.days, point.usd * (1 + change), gpus))
    if point.days_interval is not None:
        for name, days in zip(("low", "high"), point.days_interval, strict=True):
            usd = point.usd * days / point.days
            effects.append(Effect(f"step at the {name} end of its error bar", days, usd, gpus))
    if reliability.fails:
        for factor in (1 / MTBF_FACTOR, MTBF_FACTOR):
            effects.append(_mtbf_effect(point, reliability, factor))
    return effects


def _mtbf_effect(point: Point, reliability: Reliability, factor: float) -> Effect:
    name = f"failures {1 / factor:g} x as frequent"
    gpu, node = reliability.gpu_mtbf_hours, reliability.node_mtbf_hours
    changed = replace(
        reliability,
        gpu_mtbf_hours=None if gpu is None else gpu * factor,
        node_mtbf_hours=None if node is None else node * factor,
    )
    cluster = point.cell.question.cluster
    try:
        share = goodput(changed, point.num_gpus, cluster.num_nodes)
    except InputError as error:
        return Effect(name, None, None, point.num_gpus, reason=error.problem)
    moved = make_point(point.cell, point.best, share)
    return Effect(name, moved.days, moved.usd, point.num_gpus)


@dataclass(frozen=True)
class BreakEven:
    """The price of a GPU-hour at which the cheapest cell of another cluster costs what the
    answer does; ``price_usd_per_hour`` is the declared one."""

    point: Point
    price_usd_per_hour: float
    break_even_usd_per_hour: float


def break_even(answer: Point, in_time: Sequence[Point]) -> list[BreakEven]:
    """One for each other cluster, by name in their order.

    Args:
        answer: the cell to compare with.
        in_time: the cells of its model that keep to all limits but those of dollars, which the
            price would move. The cheapest of a cluster needs the fewest GPU-hours, whatever the
            price.
    """
    best: dict[str, Point] = {}
    for point in in_time:
        name = point.cell.cluster
        if name != answer.cell.cluster and (
            name not in best or point.gpu_hours < best[name].gpu_hours
        ):
            best[name] = point
    return [
        BreakEven(point, point.cell.question.gpu.price_usd_per_hour, answer.usd / point.gpu_hours)
        for point in best.values()
    ]
