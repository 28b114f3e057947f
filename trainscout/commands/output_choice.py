"""How much a command says, and in which form: its settings ``format`` and ``verbosity``."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig

from trainscout.simulators.predictor.question.errors import require_choice

FORMATS = ("table", "json", "csv")
VERBOSITIES = ("quiet", "normal", "verbose")


@dataclass(frozen=True)
class OutputChoice:
    """``format``: a report for people (``table``), or data for programs, and then nothing else on
    stdout. ``verbosity``: only the answer (``quiet``), what it takes to judge it (``normal``), or
    all there is to say (``verbose``)."""

    format: str
    verbosity: str


def output_choice(config: DictConfig) -> OutputChoice:
    """What ``config`` asks for.

    Raises:
        InputError: naming the setting and the nearest choice.
    """
    require_choice("format", config.format, FORMATS)
    require_choice("verbosity", config.verbosity, VERBOSITIES)
    return OutputChoice(config.format, config.verbosity)
