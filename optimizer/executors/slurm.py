"""Workers in Slurm jobs, submitted by submitit; Dask carries tasks to them.

A recipe takes milliseconds to minutes and a Slurm job seconds to start, so jobs live as long as
the search: each runs Dask workers that connect back to a scheduler in this process. The scheduler
listens on the network, and whoever may talk to one can run code as us: it and its workers take
only peers that show the certificate made for this search.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed
import submitit

from trainscout.optimizer.executors.dask import DaskClient
from trainscout.optimizer.options import ExecutorOptions
from trainscout.simulators.predictor.question.errors import InputError

_POLL_S = 0.2
_SCHEDULER_LOST_S = 60


class SlurmWorkers(DaskClient):
    """``options`` go to submitit (``slurm_partition``, ``timeout_min``, ``cpus_per_task``, ...),
    but for two: ``cluster`` (``slurm``, or ``local`` to try it without one) and ``folder``, a
    shared directory for the jobs' logs. A job runs one worker for each of its CPUs.
    """

    local = False

    def __init__(self, options: ExecutorOptions) -> None:
        super().__init__()
        parameters = dict(options.options)
        self._folder = str(parameters.pop("folder", "slurm_logs"))
        self._cluster_kind = str(parameters.pop("cluster", "slurm"))
        self._workers_per_job = int(parameters.setdefault("cpus_per_task", 1))
        self._parameters = parameters
        self._certificate: Path | None = None
        self._jobs: list[Any] = []

    def start(self, count: int) -> int:
        if self._client is None:
            security = distributed.Security.temporary()
            host = "127.0.0.1" if self._cluster_kind == "local" else socket.getfqdn()
            self._client = self._start_cluster(security, n_workers=0, host=host)
            self._certificate = _write_certificate(Path(self._folder), security)
            self._jobs = self._submit_jobs(math.ceil(count / self._workers_per_job))
        # Jobs queue for as long as they must; the first worker is enough to begin.
        while not self._client.nthreads():
            self.check()
            time.sleep(_POLL_S)
        return count

    def _submit_jobs(self, count: int) -> list[Any]:
        try:
            executor = submitit.AutoExecutor(folder=self._folder, cluster=self._cluster_kind)
            executor.update_parameters(**self._parameters)
            address = self._cluster.scheduler_address
            with _modules_found_in_jobs():
                return [
                    executor.submit(serve, address, self._workers_per_job, str(self._certificate))
                    for _ in range(count)
                ]
        except Exception as error:  # whatever submitit refuses, it is a setting
            problem, allowed = f"{type(error).__name__}: {error}", "what submitit takes"
            raise InputError("executor.options", self._parameters, problem, allowed) from error

    def check(self) -> None:
        if all(job.done() for job in self._jobs):
            log = Path(self._folder).absolute()
            raise RuntimeError(f"every Slurm job has ended; {log} has what they printed")

    def close(self) -> None:
        for job in self._jobs:
            job.cancel()
        self._jobs = []
        super().close()
        if self._certificate is not None:
            self._certificate.unlink(missing_ok=True)
            self._certificate = None


def _write_certificate(folder: Path, security: Any) -> Path:
    """Key and certificate of a search in one file of the folder that jobs share, which only its
    owner can read.

    Raises:
        InputError: when the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(dir=folder, prefix=".certificate-", suffix=".pem")
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise InputError("executor.options.folder", folder, problem) from error
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(security.tls_worker_key + security.tls_worker_cert)
    return Path(path).absolute()


def serve(address: str, workers: int, certificate: str) -> None:
    """Run Dask workers for the scheduler at ``address`` until it is gone: a Slurm job's work."""
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address]
    command += ["--nworkers", str(workers), "--nthreads", "1", "--no-dashboard"]
    command += ["--death-timeout", str(_SCHEDULER_LOST_S)]
    command += [f"--tls-{part}={certificate}" for part in ("ca-file", "cert", "key")]
    encrypted = {"DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true"}
    subprocess.run(command, check=True, env={**os.environ, **encrypted})


@contextlib.contextmanager
def _modules_found_in_jobs() -> Iterator[None]:
    """Jobs inherit the environment of their submission, not where this program was started."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
