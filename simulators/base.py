"""What a simulator is, and where to find one by name."""

from __future__ import annotations

import importlib
from typing import Protocol

from simulators.errors import require_choice
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
    """The simulator called ``name``.

    Raises:
        InputError: for an unknown name.
    """
    require_choice("simulator.name", name, _SIMULATORS)
    module, cls = _SIMULATORS[name]
    simulator: Simulator = getattr(importlib.import_module(module), cls)()
    return simulator
