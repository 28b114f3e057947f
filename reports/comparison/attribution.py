"""Which change brings what: the difference between two recipes, shared out over their fields.

Effects of fields interact: eight virtual stages bring much where the pipeline's bubble is large,
and little after it was made small otherwise. So no single order of the changes is right, and the
effect of a change is averaged over orders: what it adds when it is made, over all orders in which
the fields can be changed one after another such that every recipe on the way can be launched.
Without that restriction this is the Shapley value (Shapley 1953); with it, its form for games
whose coalitions must be feasible (Faigle and Kern 1992). The effects sum to the difference.

Fields for which no such order exists are changed together, and so are fields that say one thing
(recomputation and its details). With ``n`` changes there are up to
``2**n`` recipes on the way; where they are too many, orders are drawn and the standard error of
the mean is given.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainscout.reports.comparison.predictions import Predictions
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.recipe import KNOBS, Recipe

# Simulating a recipe takes milliseconds: this many stay well below the time of starting Python.
MOST_RECIPES = 128
_FEWEST_ORDERS = 30
# Beyond this many changes there are too many subsets of them, and fields of a topic go together.
_MOST_CHANGES = 12
Fields = tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """One change on the way from a recipe to another.

    ``before`` and ``after`` are the values of ``fields``, several where no order changes them one
    by one. ``step_s`` and ``memory_bytes`` (reserved on the worst stage) are what it adds on the
    average over orders, ``parts_s`` how ``step_s`` spreads over the parts of the breakdown.
    ``error_s`` is the standard error of ``step_s`` where orders were drawn, 0 where all count.
    ``least_s`` and ``most_s`` are the extremes over the orders looked at.
    ``alone_s`` is what it adds to the first recipe as it is, None where that cannot be launched.
    """

    fields: Fields
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    step_s: float
    error_s: float
    least_s: float
    most_s: float
    alone_s: float | None
    memory_bytes: float
    parts_s: dict[str, float]


@dataclass(frozen=True)
class Attribution:
    """The changes, the largest effect first, and how they were found.

    ``orders`` counts the orders that are possible, ``drawn`` those that were looked at (None:
    all). ``recipes`` were simulated, of which ``not_fitting`` may not fit in memory and count with
    the time they would take.
    """

    changes: tuple[Change, ...]
    orders: int
    drawn: int | None
    recipes: int
    not_fitting: int

    @property
    def together(self) -> tuple[Fields, ...]:
        """Fields that cannot be changed one at a time, apart from those that say one thing."""
        groups = [change.fields for change in self.changes if len(change.fields) > 1]
        return tuple(group for group in groups if len(_by_topic(group, one_thing=True)) > 1)


def changed_fields(before: Recipe, after: Recipe) -> Fields:
    """Names of the fields in which two recipes differ, in the order of ``Recipe``."""
    return tuple(name for name in KNOBS if getattr(before, name) != getattr(after, name))


def attribute(before: Recipe, after: Recipe, predictions: Predictions) -> Attribution:
    """Share out the difference between two launchable recipes over the fields they differ in."""
    names = changed_fields(before, after)
    groups = _by_topic(names, one_thing=True)
    if len(groups) > _MOST_CHANGES:
        groups = _by_topic(names)
    paths = _Paths(before, after, groups, predictions)
    while not paths.orders:
        paths = _Paths(before, after, _merged(paths), predictions)
    needed = paths.on_the_way()
    if len(needed) <= MOST_RECIPES:
        return _exact(paths, needed)
    return _sampled(paths)


class _Paths:
    """The subsets of the changes that can be launched, and the orders that lead through them.

    A subset is a bit mask over ``groups``. ``up[mask]`` counts the orders in which the changes of
    ``mask`` can be made, ``down[mask]`` those in which the others can follow.
    """

    def __init__(
        self, before: Recipe, after: Recipe, groups: list[Fields], predictions: Predictions
    ) -> None:
        self.before, self.after, self.groups = before, after, groups
        self.predictions = predictions
        count = len(groups)
        self.all = (1 << count) - 1
        launchable = [predictions.launchable(self.recipe(mask)) for mask in range(self.all + 1)]
        self.up = [0] * (self.all + 1)
        self.down = [0] * (self.all + 1)
        self.up[0] = self.down[self.all] = 1
        for mask in range(1, self.all + 1):
            if launchable[mask]:
                self.up[mask] = sum(self.up[mask ^ bit] for bit in _bits(mask))
        for mask in range(self.all - 1, -1, -1):
            if launchable[mask]:
                self.down[mask] = sum(self.down[mask | bit] for bit in _bits(self.all ^ mask))

    @property
    def orders(self) -> int:
        return self.up[self.all]

    def recipe(self, mask: int) -> Recipe:
        fields = itertools.chain.from_iterable(self.groups[_index(bit)] for bit in _bits(mask))
        return replace(self.before, **{name: getattr(self.after, name) for name in fields})

    def prediction(self, mask: int) -> Prediction:
        return self.predictions.of(self.recipe(mask))

    def on_the_way(self) -> list[int]:
        """Subsets that some order passes through."""
        return [mask for mask in range(self.all + 1) if self.up[mask] and self.down[mask]]

    def drawn(self, chance: random.Random) -> list[int]:
        """One order, all equally likely: the bits of its changes."""
        mask, order = 0, []
        while mask != self.all:
            bits = list(_bits(self.all ^ mask))
            # Whole numbers: there are more orders than a float can distinguish.
            pick = chance.randrange(self.down[mask])
            for bit in bits:
                pick -= self.down[mask | bit]
                if pick < 0:
                    break
            order.append(bit)
            mask |= bit
        return order


def _bits(mask: int) -> Iterable[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


def _index(bit: int) -> int:
    return bit.bit_length() - 1


def _by_topic(names: Fields, *, one_thing: bool = False) -> list[Fields]:
    """Fields of a topic together, or only those that say one thing."""
    groups: dict[str, list[str]] = {}
    for name in names:
        knob = KNOBS[name]
        topic = knob.topic if knob.one_thing or not one_thing else None
        groups.setdefault(topic or name, []).append(name)
    return [tuple(group) for group in groups.values()]


def _merged(paths: _Paths) -> list[Fields]:
    """Two groups made one: those that leave most orders, else those that lead furthest."""

    def made(first: int, second: int) -> list[Fields]:
        both = paths.groups[first] + paths.groups[second]
        rest = [group for at, group in enumerate(paths.groups) if at not in (first, second)]
        return [*rest[:first], both, *rest[first:]]

    def reach(groups: list[Fields]) -> tuple[int, int]:
        trial = _Paths(paths.before, paths.after, groups, paths.predictions)
        return trial.orders, sum(map(bool, trial.up)) + sum(map(bool, trial.down))

    pairs = itertools.combinations(range(len(paths.groups)), 2)
    return max((made(*pair) for pair in pairs), key=reach)


@dataclass
class _Sum:
    """Weighted effects of one change."""

    weight: float = 0.0
    step_s: float = 0.0
    squared: float = 0.0
    least_s: float = math.inf
    most_s: float = -math.inf
    memory_bytes: float = 0.0
    parts_s: dict[str, float] = dataclasses.field(default_factory=dict)

    def add(self, before: Prediction, after: Prediction, weight: float) -> None:
        gain_s = after.step_time_s - before.step_time_s
        self.weight += weight
        self.step_s += weight * gain_s
        self.squared += weight * gain_s**2
        self.least_s = min(self.least_s, gain_s)
        self.most_s = max(self.most_s, gain_s)
        needed = after.memory.needed_bytes - before.memory.needed_bytes
        self.memory_bytes += weight * needed
        for part, gap in after.gaps_s(before).items():
            self.parts_s[part] = self.parts_s.get(part, 0.0) + weight * gap


def _exact(paths: _Paths, needed: Sequence[int]) -> Attribution:
    sums = [_Sum() for _ in paths.groups]
    for mask in needed:
        for bit in _bits(paths.all ^ mask):
            passing = paths.up[mask] * paths.down[mask | bit]
            if passing:
                both = paths.prediction(mask), paths.prediction(mask | bit)
                sums[_index(bit)].add(*both, passing / paths.orders)
    return _attribution(paths, sums, needed, None)


def _sampled(paths: _Paths) -> Attribution:
    chance = random.Random(0)
    orders: list[list[int]] = []
    seen = {0}
    while len(orders) < _FEWEST_ORDERS or len(seen) < MOST_RECIPES:
        orders.append(paths.drawn(chance))
        seen.update(itertools.accumulate(orders[-1], int.__or__))
    sums = [_Sum() for _ in paths.groups]
    for order in orders:
        mask = 0
        for bit in order:
            both = paths.prediction(mask), paths.prediction(mask | bit)
            sums[_index(bit)].add(*both, 1 / len(orders))
            mask |= bit
    return _attribution(paths, sums, sorted(seen), len(orders))


def _attribution(
    paths: _Paths, sums: Sequence[_Sum], looked_at: Sequence[int], drawn: int | None
) -> Attribution:
    changes = []
    for index, (fields, total) in enumerate(zip(paths.groups, sums, strict=True)):
        alone, bit = None, 1 << index
        if paths.up[bit]:
            alone = paths.prediction(bit).step_time_s - paths.prediction(0).step_time_s
        variance = max(0.0, total.squared - total.step_s**2)
        changes.append(
            Change(
                fields=fields,
                before=tuple(getattr(paths.before, name) for name in fields),
                after=tuple(getattr(paths.after, name) for name in fields),
                step_s=total.step_s,
                error_s=0.0 if drawn is None else math.sqrt(variance / (drawn - 1)),
                least_s=total.least_s,
                most_s=total.most_s,
                alone_s=alone,
                memory_bytes=total.memory_bytes,
                parts_s=total.parts_s,
            )
        )
    changes.sort(key=lambda change: -abs(change.step_s))
    predictions = [paths.prediction(mask) for mask in looked_at]
    return Attribution(
        changes=tuple(changes),
        orders=paths.orders,
        drawn=drawn,
        recipes=len(predictions),
        not_fitting=sum(not prediction.fits for prediction in predictions),
    )
