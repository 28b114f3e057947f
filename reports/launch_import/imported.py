"""What launch arguments were found to say, and what was not understood."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe


@dataclass(frozen=True)
class Unknown:
    """An argument that the framework is not known to have, and the nearest that it has."""

    argument: str
    nearest: str | None


@dataclass(frozen=True)
class Reading:
    """What became of each argument.

    ``used`` say something of the job; ``no_effect`` have none on a step's time and memory;
    ``not_modelled`` (argument and what is assumed instead) may have, and the prediction is made
    without; ``unknown`` are not the framework's. ``notes`` say how gaps were filled.
    """

    used: tuple[str, ...]
    no_effect: tuple[str, ...]
    not_modelled: tuple[tuple[str, str], ...]
    unknown: tuple[Unknown, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ImportedLaunch:
    """A job as launch arguments describe it.

    ``framework`` names the software whose arguments they are, ``origin`` the file (or
    ``arguments``).
    """

    framework: str
    origin: str
    declared: Question
    recipe: Recipe
    reading: Reading
