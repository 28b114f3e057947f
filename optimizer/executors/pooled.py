"""A batch of recipes over workers that may be slow, hang, die or run short of memory.

Recipes go out in small tasks, a few more than there are workers, so that none waits for the
next one and little is in flight when a worker dies. When that happens, whatever was in flight
is suspect: it runs once more, one recipe at a time, and a recipe that takes its worker down
again is a failed outcome.
"""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Protocol, Self

from trainscout.optimizer.executors.base import Executor, Outcome
from trainscout.optimizer.executors.interrupts import interrupts_held, interrupts_ignored
from trainscout.optimizer.executors.serial import SerialExecutor
from trainscout.optimizer.executors.worker import Report, Task, work
from trainscout.optimizer.options import ExecutorOptions
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.registry import SimulatorSpec, prepare_simulator

# A task's worth of simulation: long beside the milliseconds it takes to send one.
_TASK_S = 0.05
# Enough tasks that a slow one does not leave the other workers idle at the end of a batch.
_TASKS_PER_WORKER = 4
# Tasks sent ahead, so that a worker that ends one has the next.
_AHEAD_PER_WORKER = 1
# The longest that workers of this machine take to be there: a crowded one needs half a minute.
_START_S = 120.0
# How often to look whether there is still somebody to wait for.
_LOOK_EVERY_S = 10.0


class Workers(Protocol):
    """Processes that take calls, somewhere.

    ``deaths`` are the exceptions by which a call's future tells that its worker died; ``local``
    says that the workers share this machine's memory.
    """

    deaths: tuple[type[BaseException], ...]
    local: bool

    def start(self, count: int) -> int:
        """Have ``count`` fresh or healthy workers (-1: as many as there are cores for).

        Called again after a death, and with a smaller ``count`` when memory runs short. Returns
        how many there are.
        """
        ...

    def submit(self, call: Callable[[Task], Report], task: Task) -> Future[Report]: ...

    def check(self) -> None:
        """Raise when no worker is left, and none will come."""
        ...

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        ...


class _NotStartedError(RuntimeError):
    """Workers of this machine are not there; why, in words."""


class PooledExecutor(Executor):
    """Tasks, deaths, timeouts and memory: what is the same for all kinds of workers."""

    def __init__(
        self,
        workers: Workers,
        question: Question,
        simulator: SimulatorSpec | str,
        options: ExecutorOptions,
    ) -> None:
        super().__init__()
        self._workers = workers
        self._question = question
        self._simulator = simulator
        self._options = options
        self._count = options.n_jobs
        self._mean_s: float | None = None
        self._peak_bytes = 0
        self._alone: SerialExecutor | None = None

    def __enter__(self) -> Self:
        try:
            self._start(self._options.n_jobs)
            self._fit_memory()
        except _NotStartedError as error:
            self._workers.close()
            self._alone = SerialExecutor(self._question, self._simulator)
            self.notes.append(
                f"{error}: recipes are simulated one after another in the search's own process, "
                "where none can be given up that hangs (executor.n_jobs=1, or more memory and "
                "processes, may help)"
            )
        except BaseException:
            self._workers.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # A second Ctrl-C would interrupt the ending of processes, which takes no time.
        with interrupts_ignored():
            self._workers.close()

    def run(self, recipes: Sequence[Recipe]) -> Iterator[tuple[int, Outcome]]:
        if self._alone is not None:
            yield from self._alone.run(recipes)
            return
        prepare_simulator(self._simulator, map(self._question.job, recipes))
        waiting = deque(self._cut(len(recipes)))
        running: dict[Future[Report], range] = {}
        suspects: list[int] = []
        while waiting or running:
            # After a death, only what is running is waited for.
            while waiting and not suspects and len(running) < self._most_running:
                positions = waiting.popleft()
                running[self._submit([recipes[p] for p in positions])] = positions
            if not running:
                yield from self._retry(recipes, suspects)
                suspects = []
                continue
            done, _ = wait(running, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
            if not done:
                self._workers.check()
            for future in done:
                positions = running.pop(future)
                try:
                    yield from zip(positions, self._outcomes(future), strict=True)
                except self._workers.deaths:
                    suspects.extend(positions)
        yield from self._retry(recipes, suspects)
        self._fit_memory()

    @property
    def _most_running(self) -> int:
        return self._count * (1 + _AHEAD_PER_WORKER)

    def _cut(self, total: int) -> list[range]:
        """Positions of a batch, as one range a task."""
        size = math.ceil(total / (self._count * _TASKS_PER_WORKER)) or 1
        if self._mean_s is not None:
            size = max(1, min(size, math.ceil(_TASK_S / max(self._mean_s, 1e-6))))
        return [range(first, min(first + size, total)) for first in range(0, total, size)]

    def _submit(self, recipes: Sequence[Recipe]) -> Future[Report]:
        options = self._options
        task = Task(
            self._question,
            self._simulator,
            tuple(recipes),
            options.trial_timeout_s,
            options.pin_cores,
        )
        return self._workers.submit(work, task)

    def _outcomes(self, future: Future[Report]) -> tuple[Outcome, ...]:
        report = future.result()
        self._peak_bytes = max(self._peak_bytes, report.peak_bytes)
        if report.outcomes:
            took_s = sum(outcome.duration_s for outcome in report.outcomes)
            self._mean_s = took_s / len(report.outcomes)
        return report.outcomes

    def _retry(
        self, recipes: Sequence[Recipe], suspects: Sequence[int]
    ) -> Iterator[tuple[int, Outcome]]:
        """Run what was in flight when a worker died once more, each recipe alone."""
        if suspects:
            self._start(self._count)
        for position in suspects:
            started_s = time.monotonic()
            try:
                (outcome,) = self._outcomes(self._submit([recipes[position]]))
            except self._workers.deaths as error:
                outcome = Outcome(None, self._why(error, time.monotonic() - started_s))
                self._start(self._count)
            yield position, outcome

    def _why(self, error: BaseException, took_s: float) -> str:
        limit_s = self._options.trial_timeout_s
        if limit_s is not None and took_s >= limit_s:
            return f"timed out: took longer than executor.trial_timeout_s={limit_s:g}, twice"
        return f"the worker process died, twice: {type(error).__name__}"

    def _start(self, count: int) -> None:
        """Have ``count`` workers that are ready to simulate.

        Raises:
            _NotStartedError: when this machine has not the memory, processes or threads for them.
        """
        try:
            with interrupts_held():
                self._count = self._workers.start(count)
                # Some kinds of workers are not there before they are given something to do.
                warm = [self._submit(()) for _ in range(self._count)]
            # Jobs of a cluster may queue for as long as they must.
            limit_s = time.monotonic() + _START_S if self._workers.local else None
            for future in warm:
                left_s = None if limit_s is None else max(0.0, limit_s - time.monotonic())
                future.exception(left_s)
                self._outcomes(future)
        except TimeoutError as error:
            problem = f"the workers were not there after {_START_S:g} s"
            raise _NotStartedError(problem) from error
        except (OSError, RuntimeError, MemoryError) as error:
            if not self._workers.local:
                raise
            problem = f"no workers could be started ({type(error).__name__}: {error})"
            raise _NotStartedError(problem) from error

    def _fit_memory(self) -> None:
        """Run no more workers than their measured peak leaves memory for."""
        if not self._workers.local:
            return
        affordable = affordable_workers(self._count, self._peak_bytes, free_bytes())
        if affordable < self._count:
            self.notes.append(
                f"{affordable} of {self._count} workers: one takes up to "
                f"{self._peak_bytes / 2**30:.1f} GiB, and memory is short"
            )
            self._start(affordable)


_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")

# Left to everything else that runs here.
_SHARE_FOR_WORKERS = 0.9


def free_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Memory that can be taken without swapping, within the container's limit.

    None where the system does not say (other systems than Linux).
    """
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text("utf-8"), re.MULTILINE)
    except OSError:
        return None
    if found is None:
        return None
    free = int(found[1]) * 1024
    try:
        limit = (cgroup / "memory.max").read_text("utf-8").strip()
        used = int((cgroup / "memory.current").read_text("utf-8"))
        # Page cache counts as used but is given back when somebody asks.
        cached = re.search(
            r"^inactive_file (\d+)", (cgroup / "memory.stat").read_text("utf-8"), re.M
        )
    except (OSError, ValueError):
        return free
    if not limit.isdigit():
        return free
    return max(0, min(free, int(limit) - used + (int(cached[1]) if cached else 0)))


def affordable_workers(count: int, peak_bytes: int, free: int | None) -> int:
    """How many of ``count`` running workers there is memory for, at least one.

    Args:
        count: workers that run now.
        peak_bytes: the most that any of them has held.
        free: what is free beside them (None: unknown, then all are affordable).
    """
    if free is None or peak_bytes <= 0:
        return count
    # What the workers hold now is theirs already; each may come to hold its peak.
    budget = (free + count * peak_bytes) * _SHARE_FOR_WORKERS
    return max(1, min(count, int(budget // peak_bytes)))
