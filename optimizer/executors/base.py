"""What an executor is, and what it gives back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.recipe import Recipe

REFUSED = "InvalidLaunchError: "
"""How the error of a launch begins that cannot be: a result like running out of memory."""


@dataclass(frozen=True)
class Outcome:
    """What simulating one recipe gave: a prediction, or ``error`` (type and message)."""

    prediction: Prediction | None
    error: str | None = None
    duration_s: float = 0.0

    @property
    def resolved(self) -> bool:
        """Whether trying again would change nothing: a prediction, or a launch that its script
        refuses."""
        return self.prediction is not None or (self.error or "").startswith(REFUSED)


class Executor(ABC):
    """Simulates valid recipes of one declared question; a context manager that owns its workers.

    A simulator that raises, hangs or takes its worker down costs that one recipe: it becomes a
    failed outcome. ``notes`` says in words what the reader of a search should know about it.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []

    @abstractmethod
    def run(self, recipes: Sequence[Recipe]) -> Iterator[tuple[int, Outcome]]:
        """One ``(position, outcome)`` for each recipe, as they come: in any order."""

    def map(self, recipes: Sequence[Recipe]) -> list[Outcome]:
        """One outcome for each recipe, in their order."""
        outcomes = dict(self.run(recipes))
        return [outcomes[position] for position in range(len(recipes))]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None
