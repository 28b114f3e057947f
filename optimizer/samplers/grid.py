"""Exhaustive search: every distinct point once."""

from __future__ import annotations

from collections.abc import Iterator

from trainscout.optimizer.samplers.base import Evaluation, Proposal, SearchSpec
from trainscout.optimizer.space import Indices
from trainscout.optimizer.survey import Survey
from trainscout.pruning.tactic import resolves_others_rank
from trainscout.simulators.predictor.question.errors import InputError


class GridSampler:
    """Lists the whole space: what cannot be launched, then recipes that resolve others, the rest.

    It is asked once per launchable recipe and no more.
    """

    exhaustive = True
    proof = None

    def __init__(self, search: SearchSpec) -> None:
        """Raises InputError for options; it has none."""
        if search.options.options:
            options = dict(search.options.options)
            raise InputError("search.options", options, "grid takes no options", "{}")
        self._points = _ordered(search.survey)

    def ask(self) -> Proposal:
        return Proposal(next(self._points))

    def tell(self, proposal: Proposal, evaluation: Evaluation) -> None:
        """Nothing to learn."""

    def learn(self, indices: Indices, evaluation: Evaluation) -> None:
        """Nothing to learn."""


def _ordered(survey: Survey) -> Iterator[Indices]:
    yield from survey.rejected_points
    ranks = list(map(resolves_others_rank, survey.recipes))
    for row in sorted(range(len(survey)), key=ranks.__getitem__):
        yield survey.points[row]
