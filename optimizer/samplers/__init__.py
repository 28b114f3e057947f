"""What to try next: one narrow ask/tell interface, one file per family of samplers."""

from __future__ import annotations

from optimizer.objective import Objective
from optimizer.options import SearchOptions
from optimizer.samplers.base import Evaluation, Proposal, Sampler
from optimizer.samplers.grid import GridSampler
from optimizer.survey import Survey
from simulators.errors import InputError

__all__ = ["Evaluation", "Proposal", "Sampler", "make_sampler"]


def make_sampler(
    options: SearchOptions, survey: Survey, objective: Objective, seed: int
) -> Sampler:
    """The sampler that ``options`` name.

    Raises:
        InputError: for unknown samplers or sampler options, a missing extra, or several
            objectives with a sampler that takes one.
    """
    if options.sampler == "grid":
        if options.options:
            raise InputError("search.options", dict(options.options), "grid takes no options")
        return GridSampler(survey)
    from optimizer.samplers.optuna import make_optuna_sampler

    return make_optuna_sampler(options, survey.space, len(objective.names), seed)
