"""What to try next: one narrow ask/tell interface, one file per family of samplers."""

from __future__ import annotations

from optimizer.objective import Objective
from optimizer.options import SearchOptions
from optimizer.samplers.base import Evaluation, Proposal, Sampler
from optimizer.samplers.grid import GridSampler
from optimizer.survey import Survey
from simulators.base import SimulatorSpec
from simulators.errors import InputError

__all__ = ["Evaluation", "Proposal", "Sampler", "make_sampler"]


def make_sampler(
    options: SearchOptions,
    survey: Survey,
    objective: Objective,
    seed: int,
    simulator: SimulatorSpec | str = "replay",
) -> Sampler:
    """The sampler that ``options`` name.

    Raises:
        InputError: for unknown samplers or sampler options, a missing extra, several
            objectives with a sampler that takes one, or a simulator without the bounds that
            the sampler needs.
    """
    if options.sampler == "grid":
        if options.options:
            raise InputError("search.options", dict(options.options), "grid takes no options")
        return GridSampler(survey)
    if options.sampler == "exact":
        from optimizer.samplers.exact import ExactSampler

        return ExactSampler(survey, objective, options, simulator)
    if options.sampler == "cma":
        from optimizer.samplers.cma import CmaSampler

        return CmaSampler(options, survey.space, len(objective.names), seed)
    from optimizer.samplers.optuna import make_optuna_sampler

    return make_optuna_sampler(options, survey.space, len(objective.names), seed)
