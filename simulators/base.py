"""What a simulator is, and where to find one by name."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import Any, Protocol

from simulators.calibration import Calibration
from simulators.errors import InputError, require_choice
from simulators.job import Gpu, Job
from simulators.prediction import Prediction


class Simulator(Protocol):
    """Predicts one job. Implementations are cheap to build and safe to pickle."""

    name: str

    def simulate(self, job: Job) -> Prediction:
        """Predict one training step of a *valid* job (see ``simulators.validity``).

        Running out of GPU memory is a result (``fits=False``), not an error.
        """
        ...


@dataclass(frozen=True)
class SimulatorSpec:
    """Which simulator, and what it goes by: a value that worker processes are handed.

    ``name``: a registered one or ``package.module:Class`` of your own.
    """

    name: str = "replay"
    calibration: Calibration | None = None

    @staticmethod
    def of(given: SimulatorSpec | str) -> SimulatorSpec:
        return SimulatorSpec(given) if isinstance(given, str) else given

    def identity(self) -> str | dict[str, Any]:
        """What must be equal for two searches to have asked the same simulator."""
        return self.name if self.calibration is None else dataclasses.asdict(self)


# Imported only when asked for, so that `import simulators` stays light.
_SIMULATORS = {"replay": ("simulators.replay.simulator", "ReplaySimulator")}


def simulator_names() -> list[str]:
    return sorted(_SIMULATORS)


def get_simulator(chosen: SimulatorSpec | str) -> Simulator:
    """The simulator that a specification or its bare name asks for.

    Raises:
        InputError: for an unknown name, a class that cannot be imported, or a calibration for
            a simulator of your own.
    """
    spec = SimulatorSpec.of(chosen)
    name = spec.name
    module, colon, cls = name.partition(":")
    if not colon:
        require_choice("simulator.name", name, _SIMULATORS)
        module, cls = _SIMULATORS[name]
    try:
        found = getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError) as error:
        if not colon:
            raise
        raise InputError("simulator.name", name, f"cannot be imported: {error}") from error
    simulator: Simulator
    if not colon:
        simulator = found(spec.calibration)
    elif spec.calibration is None:
        simulator = found()
    else:
        allowed = "simulator.name=" + " or ".join(simulator_names())
        raise InputError("simulator.calibration", name, "cannot be calibrated", allowed)
    return simulator


def check_simulator(chosen: SimulatorSpec | str, gpu: Gpu) -> None:
    """Refuse a simulator that cannot predict for a GPU, importing as little as possible.

    Raises:
        InputError: for an unknown name, a class that cannot be imported, or a calibration for
            another GPU or for a simulator of your own.
    """
    spec = SimulatorSpec.of(chosen)
    if spec.calibration is not None:
        spec.calibration.check_gpu(gpu)
    if ":" in spec.name:
        get_simulator(spec)
    else:
        require_choice("simulator.name", spec.name, _SIMULATORS)
