"""From the ``simulator`` group to a simulator's specification: files are read here."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from conf.build import build_value
from conf.commands import SimulatorChoice
from simulators.base import MeasuredKernels, SimulatorSpec
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
    measured = None
    if choice.measured_kernels is not None:
        measured = _measured(Path(choice.measured_kernels))
    return SimulatorSpec(choice.name, calibration, measured)


def _measured(path: Path) -> MeasuredKernels:
    from simulators.kernels.measured import load_measured

    # Workers may run elsewhere in the file system.
    return MeasuredKernels(str(path.absolute()), load_measured(path).digest)
