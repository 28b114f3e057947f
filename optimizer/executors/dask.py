"""Workers of a Dask cluster: one started here, or one that is running already."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import dask
import distributed
import joblib

from trainscout.optimizer.executors.worker import Report, Task
from trainscout.optimizer.options import ExecutorOptions
from trainscout.simulators.predictor.question.errors import InputError

_CONNECT_S = 20


class DaskClient:
    """Workers that a client of Dask sends tasks to, and the cluster that this process has."""

    deaths: tuple[type[BaseException], ...] = (distributed.KilledWorker, CancelledError)

    def __init__(self) -> None:
        # A task that was on a worker that died is suspect at once: retrying is ours.
        dask.config.set({"distributed.scheduler.allowed-failures": 0})
        self._cluster: Any = None
        self._client: Any = None

    def submit(self, call: Callable[[Task], Report], task: Task) -> Future[Report]:
        """Have a worker do a task."""
        executor = self._client.get_executor(pure=False, retries=0)
        future: Future[Report] = executor.submit(call, task)
        return future

    def close(self) -> None:
        """End the workers."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _start_cluster(self, security: distributed.Security, **settings: Any) -> Any:
        """The client of a cluster that this process starts, and that only ``security`` opens."""
        self._cluster = distributed.LocalCluster(
            dashboard_address=None,
            # What it logs while workers come and go is about its insides.
            silence_logs=logging.CRITICAL,
            # Others reach its ports, and whoever may talk to a scheduler can run code as us.
            protocol="tls://",
            security=security,
            **settings,
        )
        return distributed.Client(self._cluster)


class DaskWorkers(DaskClient):
    """``address`` is that of a scheduler (``tls://host:8786``), reached with what Dask's own
    configuration says of certificates; None starts a local cluster that only this process, which
    has made its certificate, can talk to.

    Workers have one thread each: a recipe that hangs is ended together with its process.
    """

    def __init__(self, options: ExecutorOptions) -> None:
        super().__init__()
        self._address = options.address
        self.local = options.address is None

    def start(self, count: int) -> int:
        if self._client is None:
            self._client = self._connect() if self._address else self._local(count)
        elif self._cluster is not None:
            self._cluster.scale(count)
        if self._cluster is not None:
            count = len(self._cluster.worker_spec)
        self._client.wait_for_workers(max(1, count), timeout=60)
        return self.ready(count)

    def ready(self, count: int) -> int:
        """Worker threads there are, at most ``count``."""
        threads = sum(self._client.nthreads().values())
        return int(threads if count == -1 else min(count, threads))

    def _local(self, count: int) -> Any:
        return self._start_cluster(
            distributed.Security.temporary(),
            n_workers=joblib.effective_n_jobs(count),
            threads_per_worker=1,
        )

    def _connect(self) -> Any:
        try:
            client = distributed.Client(self._address, timeout=_CONNECT_S)
            client.wait_for_workers(1, timeout=_CONNECT_S)
        except (OSError, TimeoutError, ValueError) as error:
            raise InputError(
                "executor.address", self._address, f"no Dask cluster answers: {error}"
            ) from error
        return client

    def check(self) -> None:
        """Dask starts dead workers again."""
