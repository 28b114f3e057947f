"""What runs where the recipes are simulated, whoever started the process."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainscout.optimizer.executors.base import Outcome
from trainscout.simulators.predictor.io.command_line import STOPPING, collect_rarely
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.registry import Simulator, SimulatorSpec, get_simulator

_ORPHAN_POLL_S = 1.0


@dataclass(frozen=True)
class Task:
    """Recipes of one question for one worker.

    A recipe that takes longer than ``trial_timeout_s`` ends the worker's process (None: never).
    ``pinned`` keeps the process on one core of its machine from then on.
    """

    question: Question
    simulator: SimulatorSpec | str
    recipes: tuple[Recipe, ...]
    trial_timeout_s: float | None
    pinned: bool


@dataclass(frozen=True)
class Report:
    """A task's outcomes in its order, and the most memory its process has ever held."""

    outcomes: tuple[Outcome, ...]
    peak_bytes: int


def work(task: Task) -> Report:
    """Simulate a task's recipes in this process; with none, only have it ready to simulate."""
    if task.pinned:
        pin_to_a_core()
    collect_rarely()
    _simulator(task.simulator)
    outcomes = []
    for recipe in task.recipes:
        with _deadline(task.trial_timeout_s):
            outcomes.append(simulate_one(task.question, task.simulator, recipe))
    return Report(tuple(outcomes), _peak_bytes())


def simulate_one(question: Question, simulator: SimulatorSpec | str, recipe: Recipe) -> Outcome:
    """Simulate one valid recipe in this process."""
    engine = _simulator(simulator)
    started_s = time.perf_counter()
    try:
        prediction, error = engine.simulate(question.job(recipe)), None
    except Exception as raised:  # any failure of one recipe must not end the search
        prediction, error = None, f"{type(raised).__name__}: {raised}"
    return Outcome(prediction, error, time.perf_counter() - started_s)


def serve_only(parent_pid: int) -> None:
    """Leave Ctrl-C and its like to the parent, and end soon after it has: nobody else would see to
    that after ``kill -9``."""
    for each in STOPPING:
        signal.signal(each, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(_ORPHAN_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()


@functools.cache
def _simulator(chosen: SimulatorSpec | str) -> Simulator:
    """One instance per process, so that what it caches serves the next recipe."""
    return get_simulator(chosen)


@contextlib.contextmanager
def _deadline(seconds: float | None) -> Iterator[None]:
    """End the process when the body takes longer: from a thread that needs no GIL, so that
    compiled code which hangs is ended too."""
    if seconds is None:
        yield
        return
    faulthandler.dump_traceback_later(seconds, exit=True, file=_nowhere())
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@functools.cache
def _nowhere() -> int:
    return os.open(os.devnull, os.O_WRONLY)


def _peak_bytes() -> int:
    try:
        import resource
    except ImportError:  # Windows; 0 is unknown
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@functools.cache
def pin_to_a_core() -> int | None:
    """Keep this process on one core that no other pinned process of this machine is on.

    The core is taken by locking a file until the process ends, so processes of several searches
    do not meet on it. None, and no pinning, when every core is taken or the system cannot pin.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    import fcntl

    directory = Path(tempfile.gettempdir()) / f"trainscout-cores-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    for core in sorted(os.sched_getaffinity(0)):
        lock = os.open(directory / str(core), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        os.sched_setaffinity(0, {core})
        return core
    return None
