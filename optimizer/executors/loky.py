"""Worker processes of this machine, kept by loky (as joblib ships it)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import joblib
from joblib.externals import loky
from joblib.externals.loky.backend import resource_tracker

from trainscout.optimizer.executors.interrupts import interrupts_held
from trainscout.optimizer.executors.worker import Report, Task, serve_only
from trainscout.optimizer.options import ExecutorOptions

# Workers are as many as cores: a library that starts threads of its own only gets in the way.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def worker_pool(workers: int) -> Any:
    """Processes that end with this one, and leave Ctrl-C to it."""
    return loky.ProcessPoolExecutor(
        workers, initializer=serve_only, initargs=(os.getpid(),), env=_ONE_THREAD
    )


class LokyWorkers:
    """One pool at a time: a pool that lost a worker is broken, and replaced."""

    deaths: tuple[type[BaseException], ...] = (BrokenProcessPool,)
    local = True

    def __init__(self, options: ExecutorOptions) -> None:
        self._pool: Any = None
        # Older versions let Ctrl-C through again in whoever starts it: not amid starting workers.
        # It takes SIGHUP, which a lost terminal sends to all, unless that is held back.
        with interrupts_held():
            resource_tracker.ensure_running()

    def start(self, count: int) -> int:
        self.close()
        workers = int(joblib.effective_n_jobs(count))
        self._pool = worker_pool(workers)
        return workers

    def submit(self, call: Callable[[Task], Report], task: Task) -> Future[Report]:
        try:
            future: Future[Report] = self._pool.submit(call, task)
        except BrokenProcessPool as error:
            future = Future()
            future.set_exception(error)
        return future

    def check(self) -> None:
        """A pool without workers is broken, and its futures tell."""

    def close(self) -> None:
        if self._pool is not None:
            # The thread that it would wait for may never have started.
            with contextlib.suppress(RuntimeError):
                self._pool.shutdown(wait=True, kill_workers=True)
            self._pool = None
