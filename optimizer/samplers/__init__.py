"""What to try next: one narrow ask/tell interface, one file per family of samplers."""

from __future__ import annotations

from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import SearchOptions
from trainscout.optimizer.samplers.base import Evaluation, Proposal, Sampler
from trainscout.optimizer.samplers.grid import GridSampler
from trainscout.optimizer.survey import Survey
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.registry import SimulatorSpec

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
        from trainscout.optimizer.samplers.exact import ExactSampler

        return ExactSampler(survey, objective, options, simulator)
    if options.sampler == "cma":
        from trainscout.optimizer.samplers.cma import CmaSampler

        return CmaSampler(options, survey.space, len(objective.names), seed)
    from trainscout.optimizer.samplers.optuna import make_optuna_sampler

    return make_optuna_sampler(options, survey.space, len(objective.names), seed)
