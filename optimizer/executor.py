"""Who simulates a batch of recipes: this process, or worker processes.

Outcomes come back in the order of the recipes. A simulator that raises, or takes its worker
down, costs that one recipe: it becomes a failed outcome and the search goes on.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from optimizer.options import ExecutorOptions
from optimizer.question import Declared
from simulators.base import Simulator, SimulatorSpec, get_simulator
from simulators.job import Recipe
from simulators.prediction import Prediction

# Enough pieces that a slow recipe does not leave the other workers idle.
_CHUNKS_PER_WORKER = 4


@dataclass(frozen=True)
class Outcome:
    """What simulating one recipe gave: a prediction, or ``error`` (type and message)."""

    prediction: Prediction | None
    error: str | None = None
    duration_s: float = 0.0


class Executor(Protocol):
    """Simulates recipes of one declared question; a context manager that owns its workers."""

    def map(self, recipes: Sequence[Recipe]) -> list[Outcome]:
        """Simulate valid recipes; one outcome for each, in order."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def make_executor(
    options: ExecutorOptions, declared: Declared, simulator: SimulatorSpec | str
) -> Executor:
    """The executor that ``options`` name, for one question and simulator.

    Raises:
        InputError: for an unknown executor or a bad worker count.
    """
    options.check()
    if options.name == "serial" or options.n_jobs == 1:
        return SerialExecutor(declared, simulator)
    return LokyExecutor(declared, simulator, options.n_jobs)


class SerialExecutor:
    """Simulates in this process, one recipe after another."""

    def __init__(self, declared: Declared, simulator: SimulatorSpec | str) -> None:
        self._declared = declared
        self._simulator = simulator

    def map(self, recipes: Sequence[Recipe]) -> list[Outcome]:
        return simulate_all(self._declared, self._simulator, recipes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class LokyExecutor:
    """Simulates in joblib's worker processes, started on entering."""

    def __init__(self, declared: Declared, simulator: SimulatorSpec | str, n_jobs: int) -> None:
        import joblib

        self._declared = declared
        self._simulator = simulator
        self._workers = int(joblib.effective_n_jobs(n_jobs))
        self._pool = joblib.Parallel(n_jobs=n_jobs, backend="loky", batch_size=1)

    def map(self, recipes: Sequence[Recipe]) -> list[Outcome]:
        from joblib.externals.loky.process_executor import BrokenProcessPool

        # A chunk carries the question once, however many recipes it holds.
        size = max(1, len(recipes) // (self._workers * _CHUNKS_PER_WORKER))
        chunks = [recipes[start : start + size] for start in range(0, len(recipes), size)]
        try:
            return self._run(chunks)
        except BrokenProcessPool:
            return [outcome for recipe in recipes for outcome in self._run_alone(recipe)]

    def _run(self, chunks: Sequence[Sequence[Recipe]]) -> list[Outcome]:
        from joblib import delayed

        task: Any = delayed(simulate_all)
        done = self._pool(task(self._declared, self._simulator, chunk) for chunk in chunks)
        return [outcome for outcomes in done for outcome in outcomes]

    def _run_alone(self, recipe: Recipe) -> list[Outcome]:
        """Find out, one by one, which recipe takes its worker down."""
        from joblib.externals.loky.process_executor import BrokenProcessPool

        try:
            return self._run([[recipe]])
        except BrokenProcessPool as error:
            return [Outcome(None, f"the worker process died: {type(error).__name__}")]

    def __enter__(self) -> Self:
        from joblib import delayed

        self._pool.__enter__()
        with _interrupts_held():
            load: Any = delayed(_load)
            self._pool(load(self._simulator) for _ in range(self._workers))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.__exit__(kind, error, traceback)


def simulate_all(
    declared: Declared, simulator: SimulatorSpec | str, recipes: Sequence[Recipe]
) -> list[Outcome]:
    """Simulate ``recipes`` in this process with the simulator that ``simulator`` asks for."""
    engine = _simulator(simulator)
    outcomes = []
    for recipe in recipes:
        started_s = time.perf_counter()
        try:
            prediction, error = engine.simulate(declared.job(recipe)), None
        except Exception as raised:  # any failure of one recipe must not end the search
            prediction, error = None, f"{type(raised).__name__}: {raised}"
        outcomes.append(Outcome(prediction, error, time.perf_counter() - started_s))
    return outcomes


def _load(simulator: SimulatorSpec | str) -> None:
    """Have this process ready to simulate."""
    _simulator(simulator)


@functools.cache
def _simulator(chosen: SimulatorSpec | str) -> Simulator:
    """One instance per process, so that what it caches serves the next recipe."""
    return get_simulator(chosen)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back while processes are started, which then never see it.

    A terminal sends it to the workers too, and one that is starting up or waiting for work would
    print a traceback; stopping them is the parent's task. Windows has no such mask.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
