"""From the groups ``simulator``, ``network`` and ``topology`` to a simulator's specification."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainscout.commands.schemas import SimulatorChoice
from trainscout.conf.build import build_cluster, build_value
from trainscout.conf.catalogue import command_defaults, load_catalogue
from trainscout.simulators.predictor.network.choice import (
    WHITEBOX,
    CongestedNetwork,
    NetworkChoice,
)
from trainscout.simulators.predictor.network.topology.fabric import SwitchFabric
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.registry import MeasuredKernels, SimulatorSpec, calibrated


def build_simulator(config: Mapping[str, Any]) -> SimulatorSpec:
    """The specification that the groups of a configuration ask for; files are read here.

    Raises:
        InputError: for a mistyped field, or a file that cannot be used.
    """
    choice = build_value(SimulatorChoice, "simulator", config["simulator"])
    calibration = None
    if choice.calibration is not None:
        from trainscout.simulators.predictor.uncertainty.calibration import read_calibration

        calibration = read_calibration(Path(choice.calibration))
    measured = None
    if choice.measured_kernels is not None:
        measured = _measured(Path(choice.measured_kernels))
    spec = SimulatorSpec(choice.name, calibration, measured, build_congested(config))
    # A study has a cluster for each of its cells.
    return calibrated(spec, build_cluster(config)) if "cluster" in config else spec


def build_congested(config: Mapping[str, Any]) -> CongestedNetwork | None:
    """What congests; None: nothing, as the white-box model has it."""
    choice = build_value(NetworkChoice, "network", config["network"])
    choice.check()
    fabric = build_value(SwitchFabric, "topology", config["topology"])
    fabric.check()
    if choice.engine != WHITEBOX:
        return CongestedNetwork(choice, fabric)
    if fabric != load_catalogue().topologies[command_defaults("simulate")[1]["topology"]]:
        problem = "is not looked at with network=whitebox"
        raise InputError("topology", fabric.name, problem, "network=flow, packet or hybrid")
    return None


def _measured(path: Path) -> MeasuredKernels:
    from trainscout.simulators.predictor.kernels.measured import load_measured

    try:
        digest = load_measured(path).digest
    except InputError as error:
        field, allowed = "simulator.measured_kernels", error.allowed
        raise InputError(field, error.value, error.problem, allowed) from error
    # Workers may run elsewhere in the file system.
    return MeasuredKernels(str(path.absolute()), digest)
