"""One search as it is asked for: a question, and how it is searched."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import ExecutorOptions, SearchOptions
from trainscout.optimizer.warm_start import known_recipes
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.registry import SimulatorSpec, check_simulator


@dataclass(frozen=True)
class AskedSearch:
    """Everything that a search goes by; nothing of where it is kept or shown."""

    question: Question
    """The fixed part of the question."""
    space: Mapping[str, Any]
    """A space file's content, plain mappings and lists (see ``optimizer.space``)."""
    objective: Objective
    """One or several measures."""
    options: SearchOptions
    """Sampler, budgets, pruning."""
    simulator: SimulatorSpec | str = "replay"
    """Which one and what it goes by, or just its name (see ``SimulatorSpec``)."""
    executor: ExecutorOptions = field(default_factory=ExecutorOptions)
    """Who simulates; by default worker processes on all cores."""
    seed: int = 0
    """Same seed, same answer."""

    @property
    def spec(self) -> SimulatorSpec:
        return SimulatorSpec.of(self.simulator)

    @property
    def promotion(self) -> SimulatorSpec | None:
        """The simulator that the best are promoted to: it sees the same network."""
        name = self.options.promote_to
        return None if name is None else SimulatorSpec(name, network=self.spec.network)

    def check(self) -> None:
        """Refuse what is wrong in itself, whatever the space holds."""
        self.question.check()
        self.options.check()
        known_recipes(self.options)
        self.executor.check()
        check_simulator(self.simulator, self.question.gpu, self.question.cluster)
        if self.promotion is not None:
            try:
                check_simulator(self.promotion, self.question.gpu)
            except InputError as error:
                field = "search.promote_to" if error.field == "simulator.name" else error.field
                problem, allowed, nearest = error.problem, error.allowed, error.nearest
                raise InputError(field, error.value, problem, allowed, nearest) from error
        if type(self.seed) is not int or not 0 <= self.seed < 2**32:
            raise InputError("seed", self.seed, "is out of range", "a whole number 0..4294967295")

    def identity(self) -> dict[str, Any]:
        """What must be equal for stored trials to continue this very search.

        Budgets and workers may differ: a resumed search may be given more of either. Where a GPU's
        figures come from changes none of them.
        """
        question, options = self.question, self.options
        unsourced = dataclasses.replace(question, gpu=question.gpu.without_sources())
        return {
            "declared": dataclasses.asdict(unsourced),
            "space": dict(self.space),
            "objective": list(self.objective.names),
            "simulator": self.spec.identity(),
            "sampler": options.sampler,
            "sampler_options": dict(options.options),
            "batch_size": options.batch_size,
            "pruning": list(options.pruning),
            "bounds": options.bounds,
            "warm_start": [dataclasses.asdict(recipe) for recipe in known_recipes(options)],
            "top_k": options.top_k,
            "seed": self.seed,
        }
