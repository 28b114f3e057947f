"""What a simulator is, and where to find one by name."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .predictor.answer.prediction import Prediction
from .predictor.network.choice import CongestedNetwork
from .predictor.question.cluster import Cluster
from .predictor.question.errors import InputError, require_choice
from .predictor.question.gpu import Gpu
from .predictor.question.job import Job

if TYPE_CHECKING:
    from .predictor.kernels.measured import MeasuredTable
    from .predictor.uncertainty.calibration import Calibration


class Simulator(Protocol):
    """Predicts one job. Implementations are cheap to build and safe to pickle."""

    name: str

    def simulate(self, job: Job) -> Prediction:
        """Predict one training step of a *valid* job (see ``question.validity``).

        Running out of GPU memory is a result (``fits=False``), not an error.
        """
        ...


@dataclass(frozen=True)
class MeasuredKernels:
    """Where a user's table of measured kernels is, and the digest of its content."""

    path: str
    digest: str


@dataclass(frozen=True)
class SimulatorSpec:
    """Which simulator, and what it goes by: a value that worker processes are handed.

    ``name``: a registered one or ``package.module:Class`` of your own.
    """

    name: str = "replay"
    calibration: Calibration | None = None
    measured_kernels: MeasuredKernels | None = None
    network: CongestedNetwork | None = None

    @staticmethod
    def of(choice: SimulatorSpec | str) -> SimulatorSpec:
        if not isinstance(choice, SimulatorSpec | str):
            raise InputError("simulator", choice, "names no simulator", tuple(_SIMULATORS))
        return SimulatorSpec(choice) if isinstance(choice, str) else choice

    def identity(self) -> str | dict[str, Any]:
        """What must be equal for two searches to have asked the same simulator."""
        if self == SimulatorSpec(self.name):
            return self.name
        measured = None if self.measured_kernels is None else self.measured_kernels.digest
        stated = {**dataclasses.asdict(self), "measured_kernels": measured}
        if self.network is None:
            del stated["network"]
        return stated


@dataclass(frozen=True)
class _Entry:
    """A simulator by name, ``module:Class``: imported only when asked for.

    ``check``: a function that refuses where the simulator cannot run. ``prepares``: it readies
    several jobs together (``prepare(jobs)``) faster than one by one.
    """

    path: str
    check: str | None = None
    prepares: bool = False


_PREDICTOR, _VIRTUAL = "trainscout.simulators.predictor", "trainscout.simulators.virtual_cluster"
_SIMULATORS = {
    "replay": _Entry(f"{_PREDICTOR}.replay.simulator:ReplaySimulator"),
    "traced": _Entry(
        f"{_VIRTUAL}.traced.simulator:TracedSimulator",
        check=f"{_VIRTUAL}.traced.tracer:check_traces_possible",
        prepares=True,
    ),
}


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def calibrated(chosen: SimulatorSpec | str, cluster: Cluster) -> SimulatorSpec:
    """The specification with the calibration that a cluster names, where it has none of its own.

    Raises:
        InputError: for a file that cannot be read or is no calibration.
    """
    spec = SimulatorSpec.of(chosen)
    if cluster.calibration is None or spec.calibration is not None or ":" in spec.name:
        return spec
    from .predictor.uncertainty.calibration import read_calibration

    known = read_calibration(Path(cluster.calibration), "cluster.calibration")
    return dataclasses.replace(spec, calibration=known)


def simulator_names() -> list[str]:
    return sorted(_SIMULATORS)


def get_simulator(chosen: SimulatorSpec | str) -> Simulator:
    """The simulator that a specification or its bare name asks for.

    Raises:
        InputError: for an unknown name, a class that cannot be imported, a table that cannot be
            read, or a calibration, a table or a network for a simulator of your own.
    """
    spec = SimulatorSpec.of(chosen)
    name = spec.name
    simulator: Simulator
    if ":" not in name:
        require_choice("simulator.name", name, _SIMULATORS)
        cls = _imported(_SIMULATORS[name].path)
        simulator = cls(spec.calibration, measured_table(spec.measured_kernels), spec.network)
        return simulator
    try:
        cls = _imported(name)
    except (ImportError, AttributeError) as error:
        raise InputError(
            "simulator.name",
            name,
            f"cannot be imported: {error}",
            [*_SIMULATORS, "package.module:Class"],
        ) from error
    for option in ("calibration", "measured_kernels", "network"):
        if getattr(spec, option) is not None:
            field = option if option == "network" else f"simulator.{option}"
            allowed = "simulator.name=" + " or ".join(simulator_names())
            raise InputError(field, name, f"takes no {option}", allowed)
    simulator = cls()
    return simulator


def prepare_simulator(chosen: SimulatorSpec | str, jobs: Iterable[Job]) -> None:
    """Have done in this process what simulating all these jobs, in whatever process, needs.

    Raises:
        InputError: when it cannot be done here.
    """
    spec = SimulatorSpec.of(chosen)
    if spec.name in _SIMULATORS and _SIMULATORS[spec.name].prepares:
        simulator: Any = get_simulator(spec)
        simulator.prepare(jobs)


@functools.lru_cache(maxsize=2)
def measured_table(kernels: MeasuredKernels | None) -> MeasuredTable | None:
    """The table of measured kernels, read once per process.

    Raises:
        InputError: when it cannot be read, or is no longer what it was.
    """
    if kernels is None:
        return None
    from .predictor.kernels.measured import load_measured

    table = load_measured(Path(kernels.path))
    if table.digest != kernels.digest:
        raise InputError("simulator.measured_kernels", kernels.path, "has changed meanwhile")
    return table


def check_simulator(chosen: SimulatorSpec | str, gpu: Gpu, cluster: Cluster | None = None) -> None:
    """Refuse a simulator that cannot predict for a GPU, importing as little as possible.

    ``cluster``: what its network, if it has one, is wired to.

    Raises:
        InputError: for an unknown name, a class that cannot be imported, packages that are not
            installed, a calibration for another GPU, beside measured kernels, or for a
            simulator of your own, or a network that the cluster cannot have.
    """
    spec = SimulatorSpec.of(chosen)
    if spec.calibration is not None:
        spec.calibration.check_gpu(gpu)
        if spec.measured_kernels is not None:
            problem = "was fitted to prices without measured kernels"
            raise InputError(
                "simulator.calibration", ", ".join(spec.calibration.gpus), problem, "one of both"
            )
    if spec.network is not None and cluster is not None:
        from trainscout.simulators.predictor.network.collectives.play import check_playable

        check_playable(spec.network, cluster, gpu)
    if ":" in spec.name:
        get_simulator(spec)
    else:
        require_choice("simulator.name", spec.name, _SIMULATORS)
        check = _SIMULATORS[spec.name].check
        if check is not None:
            _imported(check)()
