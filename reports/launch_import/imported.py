"""A user's launch as a job."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.reports.dialects.options import Reading
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe


@dataclass(frozen=True)
class ImportedLaunch:
    """A job as launch arguments describe it.

    ``framework`` names the software whose arguments they are, ``origin`` the file (or
    ``arguments``). ``names_model``: the model is what they say, not what was declared beside.
    """

    framework: str
    origin: str
    question: Question
    recipe: Recipe
    reading: Reading
    names_model: bool
