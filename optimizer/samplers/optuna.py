"""Optuna's samplers over a space of ordered integer knobs.

The study lives in memory: a search is deterministic, so a resumed one replays what is stored
through the same sampler and arrives in the same state. Nothing is unpickled from disk.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import optuna

from trainscout.optimizer.options import SearchOptions
from trainscout.optimizer.samplers.base import Evaluation, Proposal, SearchSpec
from trainscout.optimizer.space import Indices, Space
from trainscout.simulators.predictor.question.errors import InputError, require_choice

# CMA-ES only ranks: any loss above every real one keeps infeasible points last, and among
# them those that miss memory by more.
_INFEASIBLE_LOSS = 1e30


_CLASSES = {
    "gp": "GPSampler",
    "nsga2": "NSGAIISampler",
    "cmaes": "CmaEsSampler",
    "random": "RandomSampler",
}


def _defaults(options: SearchOptions) -> dict[str, Any]:
    match options.sampler:
        case "gp":
            return {"deterministic_objective": True, "n_startup_trials": 32}
        case "nsga2":
            return {"population_size": max(2, options.batch_size)}
        case "cmaes":
            # One generation per batch: a larger batch would sample a generation's law twice over.
            generation = max(5, options.batch_size)
            return {"popsize": generation, "with_margin": True, "warn_independent_sampling": False}
    return {}


def build_sampler(search: SearchSpec) -> OptunaSampler:
    """The Optuna sampler that the options name, with our defaults under the user's options.

    Raises:
        InputError: for options that the sampler does not have.
    """
    options = search.options
    if options.sampler == "gp":
        import torch

        # Its matrices are small: threads gain nothing and fight the workers for the cores.
        torch.set_num_threads(1)
    backend = getattr(optuna.samplers, _CLASSES[options.sampler])
    accepted = set(inspect.signature(backend.__init__).parameters) - {"self", "constraints_func"}
    for name in options.options:
        require_choice("search.options", name, accepted)
    arguments = {"seed": search.seed, **_defaults(options), **options.options}
    with warnings.catch_warnings():
        # Margin and multivariate sampling are marked experimental; choosing them is on purpose.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            sampler = backend(**arguments)
        except (TypeError, ValueError) as error:
            known = inspect.signature(backend).parameters
            raise InputError("search.options", dict(options.options), str(error), known) from error
    constrained = options.sampler != "cmaes"
    return OptunaSampler(
        search.space, sampler, len(search.objective.names), constrained=constrained
    )


class OptunaSampler:
    """Ask and tell on an in-memory Optuna study that minimises losses."""

    exhaustive = False
    proof = None

    def __init__(
        self,
        space: Space,
        sampler: optuna.samplers.BaseSampler,
        num_objectives: int,
        *,
        constrained: bool,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(
            directions=["minimize"] * num_objectives, sampler=sampler
        )
        self._space = space
        self._constrained = constrained
        # A knob with one choice is no dimension: CMA-ES and GP cannot use it.
        self._distributions: dict[str, Any] = {
            knob.name: optuna.distributions.IntDistribution(0, len(knob.choices) - 1)
            for knob in space.knobs
            if len(knob.choices) > 1
        }

    def ask(self) -> Proposal:
        trial = self._study.ask(self._distributions)
        return Proposal(
            tuple(int(trial.params.get(knob.name, 0)) for knob in self._space.knobs), trial
        )

    def tell(self, proposal: Proposal, evaluation: Evaluation) -> None:
        if evaluation.losses is None:
            self._study.tell(proposal.token, state=optuna.trial.TrialState.FAIL)
            return
        if self._constrained:
            proposal.token.set_constraint("memory", evaluation.memory_violation)
        self._study.tell(proposal.token, self._values(evaluation, evaluation.losses))

    def learn(self, indices: Indices, evaluation: Evaluation) -> None:
        if evaluation.losses is None:
            return
        chosen = dict(zip((knob.name for knob in self._space.knobs), indices, strict=True))
        self._study.add_trial(
            optuna.trial.create_trial(
                params={name: chosen[name] for name in self._distributions},
                distributions=self._distributions,
                values=self._values(evaluation, evaluation.losses),
                constraints=(
                    {"memory": evaluation.memory_violation} if self._constrained else None
                ),
            )
        )

    def _values(self, evaluation: Evaluation, losses: tuple[float, ...]) -> list[float]:
        if self._constrained or evaluation.memory_violation <= 0:
            return list(losses)
        return [_INFEASIBLE_LOSS * (1.0 + evaluation.memory_violation)]
