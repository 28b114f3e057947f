"""Traces whole ranks of a job on an emulated GPU: ``traced.rank_recorder``.

The first line of standard input is ``{"gpu": ..., "local_world_size": ...}``, each that follows
``{"job": ..., "micro_batches": [...], "rank": ..., "file": ...}``; every rank is answered with a
line, ``{}`` or ``{"failed": reason}``.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.io.values import typed_value
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.virtual_cluster.emulation import ListSink, emulate
from trainscout.simulators.virtual_cluster.traced.answers import serve
from trainscout.simulators.virtual_cluster.traced.cache import installed_versions
from trainscout.simulators.virtual_cluster.traced.layer_spec import read_job
from trainscout.simulators.virtual_cluster.traces.events import Header, Trace
from trainscout.simulators.virtual_cluster.traces.files import write_trace


def main() -> int:
    return serve(
        lambda about: (
            RankTracer(typed_value(Gpu, "gpu", about["gpu"]), about["local_world_size"]).answer
        )
    )


class RankTracer:
    """The one that makes this process emulated ranks of jobs on one GPU, one after another."""

    def __init__(self, gpu: Gpu, local_world_size: int) -> None:
        self._rank = emulate(
            ListSink(),
            world_size=local_world_size,
            rank=0,
            gpu=gpu,
            local_world_size=local_world_size,
        )
        from trainscout.simulators.virtual_cluster.emulation.vendor import install_vendor

        install_vendor()

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Trace one rank's steps of so many micro-batches into a file."""
        # The last rank's model goes in cycles: what it holds must be gone before this one.
        gc.collect()
        job, rank = read_job(asked["job"]), asked["rank"]
        sink = ListSink()
        self._rank.restart(sink, world_size=job.world_size, rank=rank)
        from trainscout.simulators.virtual_cluster.traced.train_rank import train

        train(job, asked["micro_batches"])
        write_trace(Path(asked["file"]), Trace(_header(job, rank), tuple(sink.events)))
        return {}


def _header(job: Job, rank: int) -> Header:
    return Header(
        world_size=job.world_size,
        rank=rank,
        local_world_size=job.cluster.gpus_per_node,
        gpu=job.gpu.name,
        memory_bytes=job.gpu.memory_bytes,
        command=("train_rank.py",),
        versions=installed_versions() or {},
    )


if __name__ == "__main__":
    sys.exit(main())
