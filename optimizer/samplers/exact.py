"""Best-first branch and bound over a whole space: the optimum, and the proof that it is one.

Every launchable recipe has a bound that its simulated value cannot beat (``pruning.bounds``).
Recipes are simulated in the order of their bounds; once the next bound is no better than the K-th
best value known, neither it nor any recipe behind it can enter the best K. The best of each layout
and the other choices that are shown are proved in the same way (``optimizer.reach``).
Of many recipes a rougher bound comes first: only those that it lets come next, or that may be the
least of their degrees, are bounded as well as can be.
With several objectives the front takes the place of the best K: a recipe is discarded when one on
the front is at least as good as its bounds in every objective.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainscout.optimizer.bounding import BLOCK_ROWS, BOUNDED_SIMULATOR, BoundingSurvey
from trainscout.optimizer.certificate import Certificate, DegreesBound
from trainscout.optimizer.choices import SHOWN_LAYOUTS, count_switches, layout_numbers
from trainscout.optimizer.objective import MEASURES
from trainscout.optimizer.reach import Reach
from trainscout.optimizer.samplers.base import Evaluation, Proposal, SearchSpec
from trainscout.optimizer.space import Indices
from trainscout.optimizer.survey import Degrees, count_degrees
from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)

# So many recipes with rough bounds cost little more to bound well than one.
_REFINED = 1024


class ExactSampler:
    """Asks for recipes in the order of their bounds until none left can be among the best.

    Args:
        survey: the launchable recipes.
        objective: one or several measures.
        options: ``top_k`` recipes are proved; ``options.epsilon`` is by what fraction others
            may beat them (0: not at all).
        simulator: whose predictions are bounded.

    Raises:
        InputError: for a simulator without bounds, unknown options, or tactics, which discard
            by experience and not by proof.
    """

    exhaustive = True

    def __init__(self, search: SearchSpec) -> None:
        options, spec = search.options, search.simulator
        if spec.name != BOUNDED_SIMULATOR:
            problem = "has no bounds, which search=exact needs"
            allowed = f"{BOUNDED_SIMULATOR}, or another search"
            raise InputError("simulator.name", spec.name, problem, allowed)
        if options.pruning:
            problem = "discards by experience; search=exact discards only what it can prove"
            raise InputError("search.pruning", list(options.pruning), problem, "search.pruning=[]")
        for name in options.options:
            require_choice("search.options", name, ("epsilon",))
        epsilon = options.options.get("epsilon", 0.0)
        require_positive("search.options.epsilon", epsilon, allow_zero=True)
        self._survey, self._objective, self._spec = search.survey, search.objective, spec
        self._on_progress = search.on_progress
        self._epsilon, self._top_k = float(epsilon), options.top_k
        self._reach: Reach | None = None
        self._bounding = BoundingSurvey(self._survey, self._objective, self._spec)
        self._losses, self._is_rough = np.empty((0, 0)), np.empty(0, dtype=np.bool_)
        self._used_bytes = np.empty(0, dtype=np.int64)
        self._capacity_bytes = self._misses = 0
        # Rows that may fit by their bound; what was simulated, and what is being simulated.
        self._able = np.arange(0)
        self._evaluations: dict[int, Evaluation] = {}
        self._pending: set[int] = set()
        # What is asked for until something is told, out of which rows, and how much of it was.
        self._queue: NDArray[np.int64] | None = None
        self._asked_of, self._asked = self._able, 0
        self.proof = self

    def ask(self) -> Proposal | None:
        """The next recipe that is open; None until what was asked for is told, or for good."""
        reach = self._bounded()
        if self._queue is None:
            self._asked_of, self._asked = self._left(), 0
            self._queue = reach.first(self._asked_of)
        # Bounded well, a row stays where it is or falls behind: those before it are as they were.
        while self._asked < len(self._queue) and self._is_rough[self._queue[self._asked]]:
            ahead = (self._queue, reach.open_first(self._asked_of))
            self._refine(np.union1d(*(rows[self._is_rough[rows]][:_REFINED] for rows in ahead)))
            self._queue = reach.first(self._asked_of)
        if self._asked == len(self._queue):
            return None
        row = int(self._queue[self._asked])
        self._asked += 1
        self._pending.add(row)
        return Proposal(self._survey.points[row], row)

    def tell(self, proposal: Proposal, evaluation: Evaluation) -> None:
        self._pending.remove(proposal.token)
        self._note(proposal.token, evaluation)

    def learn(self, indices: Indices, evaluation: Evaluation) -> None:
        """What others had simulated; what they inferred is no proof."""
        if evaluation.simulated:
            self._note(self._survey.row_of[indices], evaluation)

    def _note(self, row: int, evaluation: Evaluation) -> None:
        self._queue = None
        self._evaluations[row] = evaluation
        if self._reach is not None:
            self._reach.add(row, evaluation)

    def open_recipes(self) -> int:
        """How many recipes could yet be among the best: as many simulations at most."""
        if self._reach is None:
            return len(self._survey) - len(self._evaluations)
        left = self._left()
        left = left[self._reach.is_open(left)]
        rough = left[self._is_rough[left]]
        if 0 < len(rough) <= _REFINED:
            self._refine(rough)
            left = left[self._reach.is_open(left)]
        return len(self._pending) + len(left)

    def _left(self) -> NDArray[np.int64]:
        """Rows that may fit and are neither simulated nor asked for."""
        taken = np.fromiter([*self._evaluations, *self._pending], dtype=np.int64)
        return self._able[~np.isin(self._able, taken)]

    def _bounded(self) -> Reach:
        """Bound every recipe, once."""
        if self._reach is None:
            bounding = self._bounding
            (self._losses, used), self._is_rough = bounding.fitting_rows(self._on_progress)
            recipes = self._survey.recipes
            may_fit = bounding.may_fit(recipes, used)
            able = np.flatnonzero(may_fit)
            if not len(able):
                # Nothing fits: the closest miss is worth knowing.
                able = np.array([int(np.argmin(used))])
            chances = np.zeros(len(used))
            chances[able] = bounding.chances(recipes.take(able), used[able])
            self._misses = int(np.count_nonzero(~may_fit[able]))
            self._capacity_bytes = bounding.capacity_bytes
            self._used_bytes = used
            self._reach = Reach(
                self._losses,
                used / bounding.capacity_bytes,
                chances,
                layout_numbers(recipes, {}),
                count_switches(recipes),
                self._top_k,
                self._epsilon,
            )
            self._able = able
            for row, evaluation in self._evaluations.items():
                self._reach.add(row, evaluation)
        return self._reach

    def _refine(self, rows: NDArray[np.int64]) -> None:
        """Bound rows as well as can be, for ``Reach`` too."""
        for start in range(0, len(rows), BLOCK_ROWS):
            some = rows[start : start + BLOCK_ROWS]
            self._losses[some] = self._bounding.rows(some).losses
        self._is_rough[rows] = False

    def certificate(self) -> Certificate:
        """What is proved so far."""
        if self._reach is not None:
            left = self._left()
            self._refine(left[self._reach.is_open(left) & self._is_rough[left]])
        survey, bounded, evaluations = self._survey, self._reach is not None, self._evaluations
        still_open = self.open_recipes()
        simulated = len(evaluations)
        known = [
            each.losses
            for each in evaluations.values()
            if each.losses is not None and not each.tight and each.memory_violation <= 0
        ]
        best = min(known)[0] if known else None
        rest = None
        if self._reach is not None:
            left = np.concatenate([self._left(), np.array(sorted(self._pending), dtype=np.int64)])
            left = left[self._reach.could_win(left)]
            rest = float(self._losses[left, 0].min()) if len(left) else None
        gap = None
        if best is not None and bounded:
            gap = 0.0 if rest is None else max(0.0, (best - rest) / abs(best))
        out_of_memory = 0
        if bounded:
            able = np.count_nonzero(~np.isin(np.fromiter(evaluations, dtype=np.int64), self._able))
            out_of_memory = len(survey) - len(self._able) - int(able)
        recipes, unlisted = survey.num_recipes, 0
        if survey.left_out is not None:
            # Of what is listed only the closest miss is counted as out of memory.
            out_of_memory = survey.left_out.out_of_memory - self._misses
            unlisted = survey.left_out.unlisted
        sign = 1.0 if MEASURES[self._objective.names[0]].minimise else -1.0
        ends = [value for value in (best, rest) if value is not None]
        return Certificate(
            objectives=self._objective.names,
            points=survey.launchable_points + sum(e.count for e in survey.rejected.values()),
            not_launchable={name: entry.count for name, entry in survey.rejected.items()},
            equal=survey.equal_points,
            equal_by_rule=survey.rewritten,
            recipes=recipes,
            unlisted=unlisted,
            out_of_memory=out_of_memory,
            out_of_reach=recipes - out_of_memory - simulated - still_open if bounded else 0,
            simulated=simulated,
            tight=sum(each.tight > 0 for each in evaluations.values()),
            failed=sum(each.losses is None for each in evaluations.values()),
            open=still_open,
            top_k=self._top_k,
            epsilon=self._epsilon,
            layouts=SHOWN_LAYOUTS if self._top_k > 1 and len(self._objective.names) == 1 else 0,
            proved=bounded and still_open == 0,
            best=None if best is None else sign * best,
            bound=sign * min(ends) if ends else None,
            gap=gap,
            degrees=self._degrees() if bounded else (),
        )

    def _degrees(self) -> tuple[DegreesBound, ...]:
        """What bounds say of each tensor and pipeline degree."""
        recipes, left_out = self._survey.recipes, self._survey.left_out
        found: dict[tuple[int, int], Degrees] = {}
        if left_out is not None:
            found = dict(sorted(left_out.degrees.items()))
        else:
            self._refine_least()
            may_fit = np.zeros(len(recipes), dtype=np.int64)
            losses = np.full(len(recipes), np.inf)
            if not self._misses:
                may_fit[self._able] = 1
                losses = self._losses[:, 0]
            one = np.ones_like(may_fit)
            count_degrees(found, recipes, one, may_fit, losses, self._used_bytes)
        sign = 1.0 if MEASURES[self._objective.names[0]].minimise else -1.0
        return tuple(
            DegreesBound(
                tp=tp,
                pp=pp,
                recipes=of.recipes,
                may_fit=of.may_fit,
                bound=sign * of.loss if np.isfinite(of.loss) else None,
                least_memory_share=of.used_bytes / self._capacity_bytes,
            )
            for (tp, pp), of in found.items()
        )

    def _refine_least(self) -> None:
        """Refine until no rough loss is below the others of its degrees."""
        degrees, losses = self._survey.recipes.distinct(("tp", "pp")), self._losses[:, 0]
        order = np.argsort(losses, kind="stable")
        at_once = 4
        while self._is_rough.any():
            least = np.full(len(degrees.first), np.inf)
            known = ~self._is_rough
            np.minimum.at(least, degrees.of[known], losses[known])
            ahead = order[(self._is_rough & (losses < least[degrees.of]))[order]]
            groups = degrees.of[ahead]
            first = [ahead[groups == group][:at_once] for group in np.unique(groups).tolist()]
            if not first:
                break
            self._refine(np.concatenate(first))
            at_once *= 2
