"""Best-first branch and bound over a whole space: the optimum, and the proof that it is one.

Every launchable recipe has a bound that its simulated value cannot beat (``pruning.bounds``).
Recipes are simulated in the order of their bounds; once the next bound is no better than the K-th
best value known, neither it nor any recipe behind it can enter the best K.
With several objectives the front takes the place of the best K: a recipe is discarded when one on
the front is at least as good as its bounds in every objective.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainscout.optimizer.bounding import BOUNDED_SIMULATOR, BoundingSurvey, beaten
from trainscout.optimizer.certificate import Certificate
from trainscout.optimizer.objective import MEASURES, non_dominated
from trainscout.optimizer.samplers.base import Evaluation, Proposal, SearchSpec
from trainscout.optimizer.space import Indices
from trainscout.optimizer.tight import SHOWN, worth
from trainscout.simulators.predictor.memory.bands import LEAST_FITS, best_chances
from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)

_LOOK_AHEAD = 1024


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
        self._epsilon, self._top_k = float(epsilon), options.top_k
        self._losses = np.empty((0, 0))
        # At best, how likely a row fits; loss and probability of those that came out tight.
        self._chances = np.empty(0)
        self._tight: list[tuple[float, float]] = []
        self._order: NDArray[np.int64] | None = None
        self._at = 0
        self._known: list[tuple[float, ...]] = []
        self._pending: set[int] = set()
        self._simulated = self._failed = 0
        self.proof = self

    def ask(self) -> Proposal | None:
        order = self._order if self._order is not None else self._bound()
        while self._at < len(order):
            ahead = order[self._at : self._at + _LOOK_AHEAD]
            free = np.flatnonzero(~self._beaten(ahead))
            if not len(free):
                self._at += len(ahead)
                continue
            self._at += int(free[0]) + 1
            row = int(order[self._at - 1])
            self._pending.add(row)
            return Proposal(self._survey.points[row], row)
        return None

    def tell(self, proposal: Proposal, evaluation: Evaluation) -> None:
        self._pending.remove(proposal.token)
        self._simulated += 1
        if evaluation.losses is None:
            self._failed += 1
        elif evaluation.tight:
            self._tight.append((evaluation.losses[0], evaluation.tight))
        elif evaluation.memory_violation <= 0:
            self._known.append(evaluation.losses)
            self._known.sort()
            if len(evaluation.losses) == 1:
                del self._known[self._top_k :]
            else:
                self._known = [self._known[index] for index in non_dominated(self._known)]

    def learn(self, indices: Indices, evaluation: Evaluation) -> None:
        """Every recipe is one that was asked for."""

    def open_recipes(self) -> int:
        """How many recipes could yet be among the best: as many simulations at most."""
        if self._order is None:
            return len(self._survey)
        left = self._order[self._at :]
        return len(self._pending) + int(np.count_nonzero(~self._beaten(left)))

    def _bound(self) -> NDArray[np.int64]:
        """Bound every recipe; returns those that may fit, best bound first, ties by row."""
        bounding = BoundingSurvey(self._survey, self._objective, self._spec)
        self._losses, used = bounding.fitting_rows()
        able = np.flatnonzero(used <= bounding.may_fit_bytes)
        if not len(able):
            # Nothing fits: the closest miss is worth knowing.
            able = np.array([int(np.argmin(used))])
        self._chances = np.zeros(len(used))
        self._chances[able] = best_chances(
            used[able], bounding.capacity_bytes, bounding.frameworks
        )
        self._order = able[np.argsort(self._losses[able, 0], kind="stable")]
        return self._order

    def _beaten(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows known recipes keep out, whatever they take: those that fit every row, tight
        ones the rows that are tight at best."""
        losses, chances = self._losses[rows], self._chances[rows]
        out = beaten(losses, self._known, self._top_k, self._epsilon)
        if losses.shape[1] == 1 and len(self._tight) >= SHOWN:
            best = self._known[0][0] if self._known else None
            known = sorted(worth(*each, best) for each in self._tight)
            out |= (chances < LEAST_FITS) & (worth(losses[:, 0], chances, best) < known[-SHOWN])
        return out

    def certificate(self) -> Certificate:
        """What is proved so far."""
        survey, bounded = self._survey, self._order is not None
        order = np.arange(0) if self._order is None else self._order
        left = np.concatenate([order[self._at :], np.array(sorted(self._pending), dtype=np.int64)])
        still_open = self.open_recipes()
        best = min(self._known)[0] if self._known else None
        rest = float(self._losses[left, 0].min()) if len(left) else None
        gap = None
        if best is not None and bounded:
            gap = 0.0 if rest is None else max(0.0, (best - rest) / abs(best))
        sign = 1.0 if MEASURES[self._objective.names[0]].minimise else -1.0
        ends = [value for value in (best, rest) if value is not None]
        return Certificate(
            objectives=self._objective.names,
            points=len(survey.row_of) + sum(e.count for e in survey.rejected.values()),
            not_launchable={name: entry.count for name, entry in survey.rejected.items()},
            equal=survey.equal_points,
            equal_by_rule=survey.rewritten,
            recipes=len(survey),
            out_of_memory=len(survey) - len(order) if bounded else 0,
            out_of_reach=len(order) - self._simulated - still_open if bounded else 0,
            simulated=self._simulated,
            tight=len(self._tight),
            failed=self._failed,
            open=still_open,
            top_k=self._top_k,
            epsilon=self._epsilon,
            proved=bounded and still_open == 0,
            best=None if best is None else sign * best,
            bound=sign * min(ends) if ends else None,
            gap=gap,
        )
