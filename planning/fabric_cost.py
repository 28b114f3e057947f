"""What fabrics cost, and what a dearer one buys: dollars for each percent of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainscout.planning.fabric_prices import FabricPrices
from trainscout.planning.points import Point
from trainscout.simulators.predictor.network.topology.parts import Parts, parts


@dataclass(frozen=True)
class FabricCost:
    """One fabric of a cluster, beside the one that is fastest there.

    ``slower``: how much longer its best recipe's step is (0.02: 2 %). ``saved_usd`` is what it
    costs less; ``usd_per_percent`` of that for each percent of step time, None where nothing is
    saved.
    ``recipe_changed``: its best recipe is another.
    """

    point: Point
    parts: Parts
    usd: float
    slower: float
    saved_usd: float
    usd_per_percent: float | None
    recipe_changed: bool


def fabric_costs(points: Iterable[Point], prices: FabricPrices) -> list[FabricCost]:
    """Every played fabric of clusters that were asked with several, fastest first."""
    groups: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        if point.cell.topology is not None:
            groups.setdefault((point.cell.cluster, point.num_gpus), []).append(point)
    return [
        cost for group in groups.values() if len(group) > 1 for cost in _compared(group, prices)
    ]


def _compared(points: Sequence[Point], prices: FabricPrices) -> list[FabricCost]:
    priced = []
    for point in points:
        question, fabric = point.cell.question, point.cell.topology
        assert fabric is not None
        used = parts(question.cluster, question.gpu, fabric)
        priced.append((point, used, prices.of(used)))
    # Of equally fast ones the cheapest.
    priced.sort(key=lambda each: (each[0].best.step_time_s, each[2]))
    best, _, best_usd = priced[0]
    found = []
    for point, used, usd in priced:
        slower = point.best.step_time_s / best.best.step_time_s - 1
        saved = best_usd - usd
        per_percent = saved / (100 * slower) if slower > 0 and saved > 0 else None
        changed = point.best.recipe != best.best.recipe
        found.append(FabricCost(point, used, usd, slower, saved, per_percent, changed))
    return found
