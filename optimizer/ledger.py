"""Every distinct point of one search and what became of it."""

from __future__ import annotations

import bisect
from dataclasses import replace

import numpy as np

from trainscout.optimizer.choices import SHOWN_TIGHT, Layout, choices, layout_of, worth
from trainscout.optimizer.executors.base import Outcome
from trainscout.optimizer.objective import Objective, non_dominated
from trainscout.optimizer.samplers.base import Evaluation
from trainscout.optimizer.screen import Screened
from trainscout.optimizer.space import Indices
from trainscout.optimizer.survey import Survey
from trainscout.optimizer.trial import STATUSES, Choices, Trial
from trainscout.pruning.tactic import History, Known, Verdict
from trainscout.simulators.predictor.question.recipe import Recipe

STABLE_TOP = 5


class Ledger:
    """The trials so far, in the order asked; what is unseen, resolved, best and stable.

    ``unseen[row]`` is true for the recipes not asked yet; ``evaluations`` holds what samplers
    are told about the resolved rows; ``stable_for`` counts the recipes that fit since the
    ``STABLE_TOP`` best (or the Pareto front) last changed.
    """

    def __init__(self, survey: Survey, objective: Objective, top_k: int) -> None:
        self.trials: list[Trial] = []
        self.counts = dict.fromkeys(STATUSES, 0)
        self.unseen = np.ones(len(survey), dtype=np.bool_)
        self.evaluations: dict[int, Evaluation] = {}
        self.history = History(top_k)
        self.stable_for = 0
        self._survey = survey
        self._objective = objective
        self._invalid: set[Indices] = set()
        # Losses, row and number: equal recipes rank as they lie in the space, however found.
        self._ranking: list[tuple[tuple[float, ...], int, int]] = []
        # Those that may fit: losses, probability and number.
        self._tight: list[tuple[tuple[float, ...], float, int]] = []
        self._row_of_recipe: dict[Recipe, int] = {}
        self._number_of: dict[int, int] = {}

    @property
    def considered(self) -> int:
        """Distinct launchable recipes resolved so far."""
        return len(self.trials) - self.counts["invalid"]

    def best(self, count: int) -> list[Trial]:
        """The ``ok`` trials with the smallest loss of the first objective, best first."""
        return [self.trials[number] for _, _, number in self._ranking[:count]]

    def choices(self) -> Choices:
        """What the ``ok`` trials leave to choose from; of several objectives nothing."""
        return choices(self.best(len(self._ranking)), self._objective)

    def tight(self) -> list[Trial]:
        """Of the ``tight`` trials that no one that fits beats in every objective, those worth most
        (``optimizer.choices``), one a layout, best first."""
        if not self._tight:
            return []
        losses, chances, numbers = zip(*self._tight, strict=True)
        values = worth(np.array(losses), np.array(chances), self.best_losses(1)).tolist()
        found = zip(values, losses, numbers, strict=True)
        ranked = sorted((-value, loss, at) for value, loss, at in found if value > 0)
        layouts: dict[Layout, Trial] = {}
        for *_, at in ranked:
            layouts.setdefault(layout_of(self.trials[at].recipe), self.trials[at])
        return list(layouts.values())[:SHOWN_TIGHT]

    def best_losses(self, count: int) -> list[tuple[float, ...]]:
        """What a newcomer must beat: the ``count`` smallest losses, or those of the front."""
        losses = [entry for entry, _, _ in self._ranking]
        if len(self._objective.names) == 1:
            return losses[:count]
        return [losses[index] for index in non_dominated(losses)]

    def pareto(self) -> list[Trial]:
        """The non-dominated ``ok`` trials, by the first objective."""
        front = non_dominated([losses for losses, _, _ in self._ranking])
        return [self.trials[self._ranking[index][2]] for index in front]

    def add_invalid(self, indices: Indices) -> None:
        """Note a point that no launcher would accept (once)."""
        if indices in self._invalid:
            return
        self._invalid.add(indices)
        recipe, violation = self._survey.space.candidate(indices)
        if violation is not None:
            point = self._survey.space.point(indices)
            self._append(
                Trial(len(self.trials), point, recipe, "invalid", violation.rule, violation.reason)
            )

    def add_pruned(self, row: int, verdict: Verdict) -> None:
        """Record a recipe resolved by a tactic; samplers learn the outcome it was given."""
        resolved_by = self.evaluations[self._row_of_recipe[verdict.resolved_by.recipe]]
        self.evaluations[row] = replace(resolved_by, simulated=False)
        values = None
        if verdict.fits and resolved_by.losses is not None:
            # Turning losses round once more gives the values back.
            values = self._objective.losses(resolved_by.losses)
        self._infer(row, fits=values is not None)
        self._append(self._trial(row, "pruned", verdict.rule, verdict.reason, values=values))

    def add_screened(self, row: int, screened: Screened) -> None:
        """Record a recipe resolved by its bounds; samplers learn those."""
        self.evaluations[row] = screened.evaluation
        self._infer(row, fits=screened.evaluation.memory_violation <= 0)
        self._append(self._trial(row, "pruned", screened.rule, screened.reason))

    def _infer(self, row: int, *, fits: bool) -> None:
        """Count a recipe that is not simulated; what does not fit resolves others."""
        if fits:
            self.stable_for += 1
        else:
            self._row_of_recipe[self._survey.recipes[row]] = row
            self.history.add(Known(self._survey.recipes[row], fits=False))

    def add_simulated(self, row: int, outcome: Outcome) -> None:
        """Record a simulated recipe; what was inferred of it before is forgotten."""
        recipe, prediction = self._survey.recipes[row], outcome.prediction
        self._row_of_recipe[recipe] = row
        if prediction is None:
            self.evaluations[row] = Evaluation(None)
            self._append(self._trial(row, "failed", reason=outcome.error, outcome=outcome))
            return
        values = self._objective.values(prediction)
        losses = self._objective.losses(values)
        self.evaluations[row] = evaluation = Evaluation.of(prediction, losses)
        if evaluation.tight:
            trial = self._trial(row, "tight", values=values, outcome=outcome)
            self._tight.append((losses, evaluation.tight, trial.number))
            self._append(trial)
            return
        if not prediction.fits:
            self.history.add(Known(recipe, False, prediction))
            self._append(self._trial(row, "oom", outcome=outcome))
            return
        self.history.add(Known(recipe, True, prediction, self._objective.time_like(values)))
        trial = self._trial(row, "ok", values=values, outcome=outcome)
        self._append(trial)
        self.stable_for = 0 if self._rank(losses, row, trial.number) else self.stable_for + 1

    def _rank(self, losses: tuple[float, ...], row: int, number: int) -> bool:
        """Rank a trial that fits; whether it is among the stable best or on the front."""
        entry = (losses, row, number)
        if len(losses) == 1:
            bisect.insort(self._ranking, entry)
            return bisect.bisect_left(self._ranking, entry) < STABLE_TOP
        dominated = any(
            all(a <= b for a, b in zip(other, losses, strict=True))
            for other, _, _ in self._ranking
        )
        bisect.insort(self._ranking, entry)
        return not dominated

    def _trial(
        self,
        row: int,
        status: str,
        rule: str | None = None,
        reason: str | None = None,
        values: tuple[float, ...] | None = None,
        outcome: Outcome | None = None,
    ) -> Trial:
        return Trial(
            number=self._number_of.setdefault(row, len(self.trials)),
            point=self._survey.space.point(self._survey.points[row]),
            recipe=self._survey.recipes[row],
            status=status,
            rule=rule,
            reason=reason,
            values=values,
            prediction=None if outcome is None else outcome.prediction,
            duration_s=0.0 if outcome is None else outcome.duration_s,
        )

    def _append(self, trial: Trial) -> None:
        self.counts[trial.status] += 1
        if trial.number == len(self.trials):
            self.trials.append(trial)
        else:
            self.counts[self.trials[trial.number].status] -= 1
            self.trials[trial.number] = trial
