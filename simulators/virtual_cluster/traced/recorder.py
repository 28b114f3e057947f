"""A process that traces on an emulated GPU, and how it is talked to: packed values, one a line.

It is asked for layers (``LayerSpec``, answered with a ``TracedLayer``) or for whole ranks
(``RankOfJob``, answered with None, the trace in its file). What Megatron-Core does not run is
answered with ``Refused``.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainscout.simulators.predictor.io.own_process import own_process, packed, unpacked
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.virtual_cluster.emulation import ListSink, emulate
from trainscout.simulators.virtual_cluster.traces.events import Header, Trace
from trainscout.simulators.virtual_cluster.traces.files import write_trace

from .cache import Refused, TracedLayer, installed_versions
from .layer_spec import LayerSpec, RankOfJob
from .trace_to_blocks import EventList, blocks_of

MODULE = "trainscout.simulators.virtual_cluster.traced.recorder"
# Far beyond what a slow machine takes: what lasts longer hangs.
START_S, SECONDS_PER_QUESTION = 120, 300
# Enough to see an exception's end.
_SHOWN_LINES = 5
# No layer alone runs out of memory: whether all of them fit is the replay's to say.
MEMORY_BYTES = 2**50


def ask(gpu: Gpu, questions: Sequence[Any], node: int | None = None) -> list[Any]:
    """Run such a process; its answer to each question, in order. ``node``: for ranks of jobs whose
    nodes have so many GPUs.

    Raises:
        RuntimeError: when it ends before it has answered all, with what it said last.
        subprocess.TimeoutExpired: when it hangs.
    """
    text = "".join(packed(line) + "\n" for line in ((gpu, node), *questions))
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        process = subprocess.run(
            own_process(MODULE),
            input=text,
            stdout=subprocess.PIPE,
            stderr=complaints,
            encoding="utf-8",
            check=False,
            timeout=START_S + SECONDS_PER_QUESTION * len(questions),
        )
        answers = process.stdout.splitlines()
        if process.returncode or len(answers) != len(questions):
            complaints.seek(0)
            last = "\n".join(complaints.read().splitlines()[-_SHOWN_LINES:])
            raise RuntimeError(f"{MODULE} ended early: {last}")
    return [unpacked(answer) for answer in answers]


def ask_several(
    gpu: Gpu, questions: Sequence[Any], processes: int, node: int | None = None
) -> Iterator[Any]:
    """As ``ask``, of so many processes, each for an equal part of the questions."""
    size = -(-len(questions) // processes)
    shares = [questions[first : first + size] for first in range(0, len(questions), size)]
    with ThreadPoolExecutor(len(shares)) as pool:
        for answers in pool.map(lambda share: ask(gpu, share, node), shares):
            yield from answers


def main() -> int:
    """Be such a process.

    Standard output is for answers alone: what libraries print goes to standard error.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    gpu, node = unpacked(sys.stdin.readline())
    trace: Callable[[Any], Any] = (
        LayerTracer(gpu).trace if node is None else RankTracer(gpu, node).trace
    )
    for line in sys.stdin:
        try:
            answer = trace(unpacked(line))
        except Exception as error:  # what Megatron refuses or the device lacks is a finding
            traceback.print_exc()
            answer = Refused(f"{type(error).__name__}: {error}")
        print(packed(answer), file=answers)
    return 0


class LayerTracer:
    """The one that makes this process an emulated rank; for all layers of one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self._traced = False
        self._rank = emulate(EventList(), world_size=1, rank=0, gpu=gpu, memory_bytes=MEMORY_BYTES)
        _install_vendor()

    def restart(self, world_size: int) -> EventList:
        """Become the first of so many ranks; what it does from now on."""
        # The last layer's modules go in cycles: what they hold must be gone before this one.
        gc.collect()
        events = EventList()
        self._rank.restart(events, world_size=world_size, rank=0)
        return events

    def trace(self, spec: LayerSpec) -> TracedLayer:
        """Trace one layer; raises what Megatron-Core raises."""
        from .layer_run import record

        if not self._traced:
            # Modules and functions stay: no collection need look at them again.
            gc.freeze()
            self._traced = True
        events = self.restart(spec.world_size)
        recording, parameters = record(spec, events)
        versions = installed_versions()
        assert versions is not None
        return TracedLayer(*blocks_of(recording), parameters, versions)


class RankTracer:
    """The one that makes this process emulated ranks of jobs on one GPU, one after another."""

    def __init__(self, gpu: Gpu, node: int) -> None:
        sink = ListSink()
        self._rank = emulate(sink, world_size=node, rank=0, gpu=gpu, local_world_size=node)
        _install_vendor()

    def trace(self, asked: RankOfJob) -> None:
        """Trace one rank's steps of so many micro-batches into a file."""
        # The last rank's model goes in cycles: what it holds must be gone before this one.
        gc.collect()
        job, rank = asked.job, asked.rank
        sink = ListSink()
        self._rank.restart(sink, world_size=job.world_size, rank=rank)
        from .train_rank import train

        train(job, asked.micro_batches)
        write_trace(asked.file, Trace(_header(job, rank), tuple(sink.events)))


def _install_vendor() -> None:
    from trainscout.simulators.virtual_cluster.emulation.vendor import install_vendor

    install_vendor()


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
