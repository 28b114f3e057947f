"""The survey of a space too large to list: only recipes that may yet be among what is proved.

An exact search needs of a space what its bounds leave open, and bounds depend mostly on the
passes. So points are walked in two parts (``optimizer.enumeration``): first what decides passes,
and what they alone say is below the bounds of every recipe with those passes. Where recipes that
were simulated rule out all of them, the rest of those points is never made, only counted: how many
there are, can be launched and mean the same depends on few fields. What is left is completed,
bounded, and kept while it is open (``optimizer.reach``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainscout.optimizer import survey
from trainscout.optimizer.bounding import BLOCK_ROWS, Bounded, Bounding
from trainscout.optimizer.enumeration import Block, leading
from trainscout.optimizer.executors.interrupts import interrupts_put_off
from trainscout.optimizer.known_best import KnownBest
from trainscout.optimizer.legs import AUTO
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import SearchOptions
from trainscout.optimizer.sifting_progress import Standing, UnprovedError
from trainscout.optimizer.space import Space
from trainscout.optimizer.trial import OnProgress
from trainscout.optimizer.union import AsUnion, parts_of
from trainscout.pruning.equivalence import RULES as EQUIVALENCES
from trainscout.pruning.equivalence import SPLIT_FIELDS
from trainscout.pruning.recipe_table import Mask, RecipeTable, Rows, distinct, joined
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.recipe import RECIPE_DEFAULTS
from trainscout.simulators.predictor.question.validity import RULES as VALIDITY
from trainscout.simulators.predictor.question.validity import Violation
from trainscout.simulators.registry import SimulatorSpec

Indices = npt.NDArray[np.int16]

# Of each block the passes of so many points are looked at before all, and so many of those tried,
# so that good recipes are known early; and rounds of simulating what looks best.
_SAMPLED, _TRIED, _FIRST_ROUNDS, _ROUNDS = 1024, 24, 8, 2
# So many passes are completed at first before what they came to says what else is open.
_AT_ONCE = 512
# More open recipes than these mean that bounds rule hardly any out.
_MOST_OPEN = 2_000_000


class _TooManyOpenError(InputError):
    """Bounds rule hardly any recipe of a space out."""


def sifted_survey(
    space: Space,
    objective: Objective,
    spec: SimulatorSpec,
    options: SearchOptions,
    on_progress: OnProgress | None = None,
) -> survey.Survey:
    """The recipes of ``space`` that an exact search has to look at.

    Raises:
        UnprovedError: for ``search=auto`` when bounds leave too many or take too long; for Ctrl-C
            once something fits.
        InputError: when bounds leave too many, or the space holds no launchable recipe.
    """
    survey.require_ranks(space)
    bounding = Bounding(space.question, objective, spec)
    known = KnownBest(space.question, objective, spec, bounding, options)
    auto = options.sampler == AUTO
    limits_s = [each for each in (options.proof_timeout_s, options.timeout_s) if each is not None]
    within_s = min(limits_s, default=math.inf) if auto else math.inf
    left_out, kept = survey.LeftOut(), _Kept()
    try:
        with interrupts_put_off() as interruptible:
            standing = Standing(known, on_progress, within_s, interruptible)
            sieves = [
                _Sieve(bounding, known, left_out, standing, *part) for part in parts_of(space)
            ]
            for sieve in sieves:
                sieve.sample()
            for sieve in sieves:
                for listed in sieve.listed():
                    kept.add(listed, known)
    except _TooManyOpenError:
        if not auto:
            raise
        raise UnprovedError("bounds rule hardly any recipe out", known) from None
    if not left_out.recipes:
        raise survey.nothing_launchable(space, left_out.counts.rejected)
    if kept.is_empty:
        # Not even the activations of any passes fit.
        missing = min(sieves, key=lambda sieve: sieve.least_bytes)
        assert missing.closest is not None
        for listed in missing.complete(missing.closest):
            kept.add(listed, known)
    found = kept.still_open(known)
    return survey.listed_survey(space, found.points, found.recipes, left_out)


class _Listed(NamedTuple):
    """Recipes, their points and their bounds."""

    points: Indices
    recipes: RecipeTable
    bounded: Bounded

    def take(self, rows: Rows | Mask) -> _Listed:
        return _Listed(self.points[rows], self.recipes.take(rows), self.bounded.take(rows))

    @classmethod
    def of(cls, parts: list[_Listed]) -> _Listed:
        points, recipes, bounded = zip(*parts, strict=True)
        return cls(np.concatenate(points), joined(recipes), Bounded.of(bounded))


class _Kept:
    """What is open so far. Where nothing may fit, the closest miss."""

    def __init__(self) -> None:
        self._parts: list[_Listed] = []
        self._miss: _Listed | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is not even a miss."""
        return not self._parts and self._miss is None

    def add(self, listed: _Listed, known: KnownBest) -> None:
        simulated = known.improve(*listed, _ROUNDS)
        keep = known.open_recipes(listed.recipes, listed.bounded)
        # A recipe that was simulated is among the best by its result, not by its bound.
        keep[simulated] = True
        keep |= known.simulated(listed.recipes)
        if keep.any():
            self._parts.append(listed.take(keep))
        used = listed.bounded.used_bytes
        least = int(np.argmin(used))
        if self._miss is None or used[least] < self._miss.bounded.used_bytes[0]:
            self._miss = listed.take(np.array([least]))
        if sum(len(each.points) for each in self._parts) > _MOST_OPEN:
            self._parts = [self.still_open(known)]
            if len(self._parts[0].points) > _MOST_OPEN:
                problem = f"has more than {_MOST_OPEN:,} recipes that bounds do not rule out"
                raise _TooManyOpenError("space", "...", problem, "fewer knobs or choices")

    def still_open(self, known: KnownBest) -> _Listed:
        """What is open by all that is known now."""
        if not self._parts:
            assert self._miss is not None
            return self._miss
        found = _Listed.of(self._parts)
        keep = known.open_recipes(found.recipes, found.bounded)
        return found.take(keep | known.simulated(found.recipes))


class _Completed(NamedTuple):
    """What completing passes comes to: how many points, of which so many can be launched, or are
    rejected or rewritten by rule; and the distinct ``endings`` of the recipes that those mean, by
    their number in ``_Sieve.endings``."""

    points: int
    launchable: int
    endings: int
    rejected: dict[str, tuple[int, Violation]]
    rewritten: dict[str, int]


class _Passes(NamedTuple):
    """The points that decide passes, of a block that can be launched as far as they say; how many
    recipes each is completed to that no earlier one is, and which ``endings`` those have."""

    block: Block
    recipes: RecipeTable
    completed: Rows
    endings: Rows

    def take(self, rows: Rows | Mask) -> _Passes:
        return _Passes(
            self.block.take(rows),
            self.recipes.take(rows),
            self.completed[rows],
            self.endings[rows],
        )


# Passes, and what each ends in.
_Ended = tuple[RecipeTable, Rows]


class _Sieve:
    """One part of a space."""

    def __init__(
        self,
        bounding: Bounding,
        known: KnownBest,
        left_out: survey.LeftOut,
        standing: Standing,
        space: Space,
        as_union: AsUnion,
    ) -> None:
        self.standing, self.as_union = standing, as_union
        self.bounding, self.known, self.left_out = bounding, known, left_out
        self.job_of = space.question.job
        self.walk = leading(space, {*bounding.of_recipes.passes_read(), "tp", "pp", "cp"})
        self.unknown = self.walk.open_fields
        self.deciding = self.names_that_decide()
        self.completed: dict[tuple[Any, ...], _Completed] = {}
        # What passes leave open of a recipe, and the sets of it that occur.
        self.left_open = sorted(
            self.unknown | {name for name in RECIPE_DEFAULTS if self.rewritten_later(name)}
        )
        self.endings: dict[frozenset[tuple[Any, ...]], int] = {}
        self.stable = self.stable_knobs()
        # Of passes left out where those lie that hold least, and how many bytes.
        self.closest: Block | None = None
        self.least_bytes = math.inf

    def names_that_decide(self) -> list[str]:
        """What of the passes enters how many points they are completed to, and what becomes of
        those."""
        space, depth = self.walk.space, self.walk.depth
        read = {*space.held, "tp", "pp", "cp"}
        for knob, constraints in list(zip(space.knobs, space.constraints, strict=True))[depth:]:
            for each in (knob.when, *constraints):
                read |= each.names if each is not None else set()
        for _, each in space.derived:
            read |= each.names
        for rules in (VALIDITY, EQUIVALENCES):
            for rule in rules.values():
                read |= set(rule.reads) if self.unknown & set(rule.reads) else set()
        return sorted(read)

    def rewritten_later(self, name: str) -> bool:
        """Whether a rule rewrites a field by what passes leave open."""
        return name in EQUIVALENCES and not self.unknown.isdisjoint(EQUIVALENCES[name].reads)

    def stable_knobs(self) -> int:
        """How many knobs come first that are fields which no rule rewrites: equal recipes agree in
        them."""
        rewritten = {*EQUIVALENCES, *SPLIT_FIELDS}
        knobs = self.walk.space.knobs[: self.walk.depth]
        stable = [knob.name in RECIPE_DEFAULTS and knob.name not in rewritten for knob in knobs]
        return stable.index(False) if False in stable else len(stable)

    def sample(self) -> None:
        """Simulate good recipes among some of all passes."""
        random = np.random.default_rng(0)
        for block in self.walk.blocks():
            size = min(_SAMPLED, len(block.indices))
            some = block.take(np.sort(random.choice(len(block.indices), size, replace=False)))
            checked = survey.check(some, self.job_of, self.unknown)
            bounded = self.bounding.least(checked.recipes)
            is_open = self.known.open_passes(checked.recipes, bounded, self.unknown)
            # The fastest passes mostly do not fit: some of all besides.
            fastest = np.argsort(bounded.losses[:, 0], kind="stable")[:_TRIED]
            others = random.permutation(len(is_open))[:_TRIED]
            rows = np.union1d(fastest, others)
            rows = rows[is_open[rows]]
            for listed in self.complete(some.take(checked.valid).take(rows)):
                self.known.improve(*listed, _FIRST_ROUNDS)
            self.standing.sampled(len(block.indices))

    def listed(self) -> Iterator[_Listed]:
        """The recipes that their passes do not rule out, counted with all others."""
        for passes in self.passes():
            for start in range(0, len(passes.recipes), BLOCK_ROWS):
                rows = np.arange(start, min(start + BLOCK_ROWS, len(passes.recipes)))
                yield from self.sift(passes.take(rows))

    def sift(self, passes: _Passes) -> Iterator[_Listed]:
        self.left_out.recipes += int(passes.completed.sum())
        bounded = self.bounding.least(passes.recipes)
        is_open = self.known.open_passes(passes.recipes, bounded, self.unknown)
        self.leave_out(passes.take(~is_open), bounded.take(~is_open))
        passes = passes.take(is_open)
        bounded = self.bounding.passes(passes.recipes)
        order = np.argsort(bounded.losses[:, 0], kind="stable")
        at_once = _AT_ONCE
        while len(order):
            left = passes.recipes.take(order)
            is_open = self.known.open_passes(left, bounded.take(order), self.unknown)
            closed = order[~is_open]
            self.leave_out(passes.take(closed), bounded.take(closed))
            chosen, order = np.split(order[is_open], [at_once])
            at_once *= 2
            # Several passes may be completed to one recipe, which counts with the first.
            taken = passes.take(chosen)
            none, never = np.zeros_like(taken.completed), np.full(len(chosen), np.inf)
            counted = taken.recipes, taken.completed, none, never, never
            survey.count_degrees(self.left_out.degrees, *counted)
            for listed in self.complete(passes.block.take(chosen)):
                used_bytes = listed.bounded.used_bytes
                fits = self.bounding.may_fit(listed.recipes, used_bytes).astype(np.int64)
                self.left_out.out_of_memory += int(np.count_nonzero(fits == 0))
                self.count_degrees(listed.recipes, np.zeros_like(fits), fits, listed.bounded)
                yield listed
            self.standing.sifted(len(chosen))

    def leave_out(self, passes: _Passes, bounded: Bounded) -> None:
        """Count what is ruled out by its passes."""
        may_fit = passes.completed * self.bounding.may_fit(passes.recipes, bounded.used_bytes)
        self.left_out.unlisted += int(passes.completed.sum())
        self.standing.sifted(len(passes.recipes))
        self.left_out.out_of_memory += int((passes.completed - may_fit).sum())
        self.count_degrees(passes.recipes, passes.completed, may_fit, bounded)
        held_bytes = bounded.used_bytes
        if len(held_bytes) and 0 < held_bytes.min() < self.least_bytes:
            self.closest = passes.block.take(np.array([np.argmin(held_bytes)]))
            self.least_bytes = int(held_bytes.min())

    def count_degrees(
        self, recipes: RecipeTable, count: Rows, may_fit: Rows, bounded: Bounded
    ) -> None:
        degrees, losses = self.left_out.degrees, bounded.losses[:, 0]
        survey.count_degrees(degrees, recipes, count, may_fit, losses, bounded.used_bytes)

    def complete(self, block: Block) -> Iterator[_Listed]:
        """All recipes with some passes, each once, with their bounds."""
        if not len(block.indices):
            return
        for _, whole in self.walk.complete(block):
            checked = survey.check(whole, self.job_of)
            found = checked.recipes.distinct(tuple(checked.recipes.columns))
            rows = np.sort(found.first)
            recipes = checked.recipes.take(rows)
            if len(recipes):
                points = self.as_union(whole.indices[checked.valid][rows])
                yield _Listed(points, recipes, self.bounding.table(recipes))

    def passes(self) -> Iterator[_Passes]:
        """All passes, counted as what they are completed to."""
        earlier = RecipeTable.of([]), np.zeros(0, dtype=np.int64)
        place: list[int] = []
        for block in self.walk.blocks():
            checked = survey.check(block, self.job_of, self.unknown)
            of, completed = self.completions(block, checked.valid)
            counts, left_out = self.left_out.counts, self.left_out
            points = np.array([each.points for each in completed], dtype=np.int64)[of]
            launchable = np.array([each.launchable for each in completed], dtype=np.int64)[of]
            endings = np.array([each.endings for each in completed], dtype=np.int64)[of]
            counts.add(checked._replace(rewritten={}), points)
            counts.add(checked._replace(rejected={}), launchable)
            times = np.bincount(of[checked.valid], minlength=len(completed)).tolist()
            for count, each in zip(times, completed, strict=True):
                for rule, (number, why) in each.rejected.items():
                    counts.reject(rule, count * number, why)
                for rule, number in each.rewritten.items():
                    counts.rewrite(rule, count * number)
            left_out.points += int(launchable[checked.valid].sum())
            ended = endings[checked.valid]
            own = _Passes(block.take(checked.valid), checked.recipes, np.zeros_like(ended), ended)
            if not len(own.recipes):
                self.standing.sifted(len(block.indices))
                continue
            # Equal recipes agree in their first knobs, so that they lie close together.
            first = own.block.indices[:, : self.stable]
            own = self.others(earlier if place == first[0].tolist() else None, own)
            if len(own.recipes):
                first = own.block.indices[:, : self.stable]
                last = own.take((first == first[-1]).all(axis=1))
                same = last.recipes, last.endings
                earlier = _both(earlier, same) if place == first[-1].tolist() else same
                place = first[-1].tolist()
            self.standing.sifted(len(block.indices) - len(own.recipes))
            yield own

    def others(self, earlier: _Ended | None, own: _Passes) -> _Passes:
        """Those that are completed to recipes that no earlier ones, or rows, are.

        Points of equal passes need not be completed alike: what further knobs may be is a matter
        of what points say, of which nothing may be left once a rule has spoken.
        """
        begin, (table, endings) = 0, (own.recipes, own.endings)
        if earlier is not None:
            begin, (table, endings) = len(earlier[1]), _both(earlier, (table, endings))
        names, sets = tuple(table.columns), list(self.endings)
        sizes = np.array([len(each) for each in sets], dtype=np.int64)
        groups = table.distinct(names).of
        rows = np.sort(table.distinct(names, (endings,)).first)
        new = sizes[endings[rows]]
        several = np.bincount(groups[rows])[groups[rows]] > 1
        seen: dict[int, set[tuple[Any, ...]]] = {}
        for place in np.flatnonzero(several).tolist():
            known = seen.setdefault(int(groups[rows[place]]), set())
            found = sets[endings[rows[place]]]
            new[place] = len(found - known)
            known |= found
        kept = (rows >= begin) & (new > 0)
        return own.take(rows[kept] - begin)._replace(completed=new[kept])

    def completions(self, block: Block, valid: Mask) -> tuple[Rows, list[_Completed]]:
        """What the points of a block are completed to: distinct answers, and which each has."""
        values = [block.values[name] for name in self.deciding if name in block.values]
        parts = [(len(each.values), each.codes) for each in values]
        found = distinct([*parts, (2, valid.astype(np.int8))], len(valid))
        keys = [
            (*(each.values[each.codes[row]] for each in values), bool(valid[row]))
            for row in found.first.tolist()
        ]
        new = [index for index, key in enumerate(keys) if key not in self.completed]
        if new:
            counted = self.count_completions(block.take(found.first[new]))
            self.completed.update(zip((keys[index] for index in new), counted, strict=True))
        return found.of, [self.completed[key] for key in keys]

    def count_completions(self, block: Block) -> list[_Completed]:
        size = len(block.indices)
        points, launchable = np.zeros((2, size), dtype=np.int64)
        endings: list[set[tuple[Any, ...]]] = [set() for _ in range(size)]
        rejected: list[dict[str, tuple[int, Violation]]] = [{} for _ in range(size)]
        rewritten: list[dict[str, int]] = [{} for _ in range(size)]
        for origin, whole in self.walk.complete(block):
            checked = survey.check(whole, self.job_of)
            of = origin[checked.valid]
            points += np.bincount(origin, minlength=size)
            launchable += np.bincount(of, minlength=size)
            found = checked.recipes.distinct(self.left_open, (of,))
            ends = checked.recipes.values(self.left_open, found.first)
            for index, end in zip(of[found.first].tolist(), ends, strict=True):
                endings[index].add(end)
            for rule, (mask, why) in checked.rejected.items():
                for index, count in _each(origin[mask]):
                    rejected[index][rule] = count + rejected[index].get(rule, (0, why))[0], why
            for rule, mask in checked.rewritten.items():
                # What rules rewrite of passes is counted with those.
                if self.unknown & set(EQUIVALENCES[rule].reads):
                    for index, count in _each(origin[mask]):
                        rewritten[index][rule] = count + rewritten[index].get(rule, 0)
        numbers = [self.endings.setdefault(frozenset(each), len(self.endings)) for each in endings]
        columns = (points.tolist(), launchable.tolist(), numbers, rejected, rewritten)
        return [_Completed(*each) for each in zip(*columns, strict=True)]


def _each(numbers: Rows) -> list[tuple[int, int]]:
    """The numbers that occur, and how often."""
    found, counts = np.unique(numbers, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))


def _both(earlier: _Ended, later: _Ended) -> _Ended:
    return joined([earlier[0], later[0]]), np.concatenate([earlier[1], later[1]])
