"""CMA-ES by pycma over ordered integer knobs: generations, integers with margin, restarts."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from trainscout.optimizer.samplers.base import Evaluation, Proposal, SearchSpec
from trainscout.optimizer.space import Indices
from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)

# Standard deviation of the first generation, as a share of each knob's range: it covers the space.
_SIGMA = 0.3
_LEAST_POPULATION = 5
_OPTIONS = ("sigma",)
# Ranks only count; failures come after whatever ran, however far it missed memory.
_MISSED, _FAILED = 1, 2


class CmaSampler:
    """Asks for one generation after another; a generation is told once all of it is known.

    Points that miss memory rank behind all that fit, by how much they miss. When a run has
    converged, the next starts from a random point with twice the population (IPOP-CMA-ES: Auger
    and Hansen, CEC 2005). Integer knobs keep pycma's least deviation, so none freezes early.

    Raises:
        InputError: for unknown options, or fewer than two knobs with a choice.
    """

    exhaustive = False
    proof = None

    def __init__(self, search: SearchSpec) -> None:
        options, space = search.options, search.space
        for name in options.options:
            require_choice("search.options", name, _OPTIONS)
        sigma = options.options.get("sigma", _SIGMA)
        require_positive("search.options.sigma", sigma)
        self._sigma = float(sigma)
        self._dimensions = [
            place for place, knob in enumerate(space.knobs) if len(knob.choices) > 1
        ]
        self._ranges = np.array(
            [len(space.knobs[place].choices) - 1 for place in self._dimensions]
        )
        if len(self._dimensions) < 2:
            problem = f"has {len(self._dimensions)} knobs with a choice, and pycma needs two"
            raise InputError("space", space.name, problem, "search=grid or search=exact")
        self._num_knobs = len(space.knobs)
        self._random = np.random.default_rng(search.seed)
        # pycma draws from NumPy's global generator, which is not ours to move.
        self._global_state = np.random.RandomState(search.seed).get_state()
        self._population = max(_LEAST_POPULATION, options.batch_size)
        self._strategy = self._begin(self._ranges / 2)
        self._generation: list[Any] = []
        self._unasked: deque[int] = deque()
        self._losses: dict[int, tuple[int, float]] = {}

    def ask(self) -> Proposal:
        if not self._unasked and len(self._losses) == len(self._generation):
            self._next_generation()
        elif not self._unasked:
            # Asked for more before all is told: one more of this generation.
            with self._own_randomness():
                self._generation += self._strategy.ask(1)
            self._unasked.append(len(self._generation) - 1)
        place = self._unasked.popleft()
        indices = [0] * self._num_knobs
        chosen = np.clip(np.rint(self._generation[place]), 0, self._ranges)
        for knob, index in zip(self._dimensions, chosen, strict=True):
            indices[knob] = int(index)
        return Proposal(tuple(indices), place)

    def tell(self, proposal: Proposal, evaluation: Evaluation) -> None:
        if evaluation.losses is None:
            self._losses[proposal.token] = (_FAILED, 0.0)
        elif evaluation.memory_violation > 0:
            self._losses[proposal.token] = (_MISSED, evaluation.memory_violation)
        else:
            self._losses[proposal.token] = (0, evaluation.losses[0])

    def learn(self, indices: Indices, evaluation: Evaluation) -> None:
        """pycma learns from the generations it asked for only."""

    def _next_generation(self) -> None:
        if self._generation:
            order = sorted(self._losses, key=lambda place: self._losses[place])
            ranks = np.empty(len(order))
            ranks[order] = self._tied_ranks(order)
            with self._own_randomness():
                self._strategy.tell(self._generation, ranks.tolist())
                stopped = bool(self._strategy.stop())
            if stopped:
                self._population *= 2
                self._strategy = self._begin(self._random.uniform(0, self._ranges))
        with self._own_randomness():
            self._generation = self._strategy.ask()
        self._losses = {}
        self._unasked = deque(range(len(self._generation)))

    def _tied_ranks(self, order: list[int]) -> list[int]:
        """Ranks of places in order of their losses, equal losses sharing one."""
        ranks: list[int] = []
        for number, place in enumerate(order):
            same = number > 0 and self._losses[place] == self._losses[order[number - 1]]
            ranks.append(ranks[-1] if same else number)
        return ranks

    def _begin(self, start: np.ndarray) -> Any:
        import cma

        count = len(self._dimensions)
        with self._own_randomness():
            return cma.CMAEvolutionStrategy(
                start.tolist(),
                self._sigma,
                {
                    # Rounding gives every choice, the outermost too, one unit of the line.
                    "bounds": [[-0.5] * count, (self._ranges + 0.5).tolist()],
                    "integer_variables": list(range(count)),
                    "CMA_stds": self._ranges.tolist(),
                    "popsize": self._population,
                    "seed": math.nan,
                    "verbose": -9,
                },
            )

    @contextlib.contextmanager
    def _own_randomness(self) -> Iterator[None]:
        before = np.random.get_state()
        np.random.set_state(self._global_state)
        try:
            yield
        finally:
            self._global_state = np.random.get_state()
            np.random.set_state(before)
