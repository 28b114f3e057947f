"""What a simulator is, and where to find one by name."""

from __future__ import annotations

import importlib
from typing import Protocol

from simulators.errors import InputError, require_choice
from simulators.job import Job
from simulators.prediction import Prediction


class Simulator(Protocol):
    """Predicts one job. Implementations are cheap to build and safe to pickle."""

    name: str

    def simulate(self, job: Job) -> Prediction:
        """Predict one training step of a *valid* job (see ``simulators.validity``).

        Running out of GPU memory is a result (``fits=False``), not an error.
        """
        ...


# Imported only when asked for, so that `import simulators` stays light.
_SIMULATORS = {"replay": ("simulators.replay.simulator", "ReplaySimulator")}


def simulator_names() -> list[str]:
    return sorted(_SIMULATORS)


def get_simulator(name: str) -> Simulator:
    """The simulator called ``name``, or the class ``package.module:Class`` of your own.

    Raises:
        InputError: for an unknown name, or a class that cannot be imported.
    """
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
    simulator: Simulator = found()
    return simulator


def check_simulator(name: str) -> None:
    """Refuse a simulator that ``get_simulator`` would not find, importing as little as possible.

    Raises:
        InputError: for an unknown name, or a class that cannot be imported.
    """
    if ":" in name:
        get_simulator(name)
    else:
        require_choice("simulator.name", name, _SIMULATORS)
