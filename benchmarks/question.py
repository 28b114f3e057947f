"""Compose a declared question from names, as the commands do."""

from __future__ import annotations

from hydra import compose, initialize_config_module

from trainscout.commands.schemas import register_commands
from trainscout.conf.build import build_question
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe


def compose_question(*overrides: str) -> Question:
    """Model, GPU, cluster and training of ``simulate.py`` with these overrides."""
    register_commands()
    with initialize_config_module("conf", version_base="1.3"):
        return build_question(compose("simulate", list(overrides)))


def job(recipe: Recipe, *overrides: str) -> Job:
    """One complete question."""
    return compose_question(*overrides).job(recipe)
