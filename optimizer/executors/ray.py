"""Workers of a Ray cluster: one started here, or one that is running already."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import joblib

from trainscout.optimizer.executors.worker import Report, Task
from trainscout.optimizer.options import ExecutorOptions
from trainscout.simulators.predictor.question.errors import InputError

# Read when Ray is imported: nothing is reported over the network, and no warnings about values
# that a search never sets.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
import ray.exceptions


class RayWorkers:
    """``address`` is that of a cluster (``auto``, ``ray://host:10001``); None starts one here."""

    deaths: tuple[type[BaseException], ...] = (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.OutOfMemoryError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.TaskCancelledError,
    )

    def __init__(self, options: ExecutorOptions) -> None:
        self._address = options.address
        self.local = options.address is None
        self._remote: Any = None

    def start(self, count: int) -> int:
        if not ray.is_initialized():
            self._connect(count)
        # Retrying is ours: a task is not sent again behind our back.
        self._remote = ray.remote(max_retries=0, num_cpus=1)(_call)
        # Ray replaces dead workers by itself.
        cores = int(ray.cluster_resources().get("CPU", 1))
        return cores if count == -1 else min(count, cores)

    def _connect(self, count: int) -> None:
        try:
            ray.init(
                address="local" if self._address is None else self._address,
                num_cpus=joblib.effective_n_jobs(count) if self._address is None else None,
                include_dashboard=False if self._address is None else None,
                logging_level=logging.CRITICAL,
                log_to_driver=False,
                configure_logging=False,
            )
        except (ConnectionError, ValueError) as error:
            problem = f"no Ray cluster answers: {str(error).splitlines()[0]}"
            raise InputError("executor.address", self._address, problem) from error

    def submit(self, call: Callable[[Task], Report], task: Task) -> Future[Report]:
        future: Future[Report] = self._remote.remote(call, task).future()
        return future

    def check(self) -> None:
        """Ray starts dead workers again."""

    def close(self) -> None:
        ray.shutdown()


def _call(call: Callable[[Task], Report], task: Task) -> Report:
    return call(task)
