"""From the ``simulator`` group to a simulator's specification: files are read here."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from conf.build import build_value
from conf.commands import SimulatorChoice
from simulators.base import SimulatorSpec
from simulators.calibration import read_calibration


def build_simulator(config: DictConfig) -> SimulatorSpec:
    """The specification that a composed ``simulator`` group asks for.

    Raises:
        InputError: for a mistyped field, or a file that cannot be used.
    """
    choice = build_value(SimulatorChoice, "simulator", config)
    calibration = None
    if choice.calibration is not None:
        calibration = read_calibration(Path(choice.calibration))
    return SimulatorSpec(choice.name, calibration)
