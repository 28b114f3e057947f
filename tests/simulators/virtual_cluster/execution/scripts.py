"""Hand-made traces: a rank's events, written as the calls its script makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.samples import CLUSTER, GPU
from trainscout.simulators.predictor.collectives.price import price_collective, price_send_recv
from trainscout.simulators.predictor.kernels.prices import price_kernels
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.replay.priced import PARTS
from trainscout.simulators.predictor.replay.prices import slowest_excess
from trainscout.simulators.predictor.workload.ir import Gemm
from trainscout.simulators.virtual_cluster.execution.answer import TracedStep
from trainscout.simulators.virtual_cluster.execution.step import replay_ranks
from trainscout.simulators.virtual_cluster.traces import events
from trainscout.simulators.virtual_cluster.walk.communicators import (
    communicator_of,
    levels_crossed,
    narrowed,
)

# Two nodes of four GPUs, whose kernels take what they are priced at.
PAIR = replace(CLUSTER, num_nodes=2, gpus_per_node=4, nics_per_node=4)
INSTANT = Framework(name="instant", host_launch_s=0.0)
MIB = 2**20
BIG, SMALL = 4096, 2048
TP = "TENSOR_MODEL_PARALLEL_GROUP"


class Script:
    """Collects the events of one rank, all of them of one step unless said otherwise."""

    def __init__(self, rank: int, world_size: int, *, begun: bool = True) -> None:
        self.rank = rank
        self.world_size = world_size
        self.events: list[events.Event] = [events.Phase("forward", 0)] if begun else []
        self.works = 0
        self.calls: Counter[object] = Counter()

    def trace(self) -> events.Trace:
        header = events.Header(
            self.world_size, self.rank, 4, "h100", GPU.memory_bytes, ("train.py",), {}
        )
        return events.Trace(header, tuple(self.events))

    def group(self, name: str, *ranks: int, collnet: bool = False) -> None:
        self.events.append(events.Group(name, name, ranks, collnet))

    def step(self, number: int, phase: str = "forward") -> None:
        self.events.append(events.Phase(phase, number))

    def gemm(self, size: int, stream: int = 0) -> None:
        left = events.TensorSpec("bfloat16", (size, size), 1)
        self.events.append(events.Op("aten.mm.default", (left, left), (left,), stream))

    def host(self, seconds: float) -> None:
        self.events.append(events.HostGap(seconds))

    def host_work(self, size: int) -> None:
        self.events.append(events.HostWork(size))

    def record(self, event: int, stream: int = 0) -> None:
        self.events.append(events.EventRecord(event, stream))

    def wait(self, event: int, stream: int) -> None:
        self.events.append(events.EventWait(event, stream))

    def synchronise(self, scope: str = "device", number: int | None = None) -> None:
        self.events.append(events.Synchronise(scope, number))

    def read(self, stream: int = 0) -> None:
        self.events.append(events.ValueRead("item", 1.0, "invented", stream))

    def collective(
        self, group: str, size: int, kind: str = "all_reduce", stream: int = 0, wait: bool = True
    ) -> int:
        self.works += 1
        number = self.calls[group]
        self.calls[group] += 1
        self.events.append(
            events.Collective(kind, group, number, size, size, "bfloat16", stream, self.works)
        )
        if wait:
            self.work_wait(self.works, stream)
        return self.works

    def work_wait(self, work: int, stream: int = 0, host: bool = False) -> None:
        self.events.append(events.WorkWait(work, stream, host))

    def transfer(
        self, kind: str, group: str, peer: int, size: int, batch: int | None = None
    ) -> int:
        self.works += 1
        key = (kind, group, peer)
        number = self.calls[key]
        self.calls[key] += 1
        self.events.append(
            events.PointToPoint(kind, group, peer, number, size, "bfloat16", 0, self.works, batch)
        )
        return self.works

    def alloc(self, storage: int, size: int, stream: int = 0) -> None:
        self.events.append(events.Alloc(storage, size, stream))

    def free(self, storage: int) -> None:
        self.events.append(events.Free(storage))

    def record_stream(self, storage: int, stream: int) -> None:
        self.events.append(events.RecordStream(storage, stream))


def gemm_s(size: int, gpus: int) -> float:
    """What ``Script.gemm`` takes in a job of so many GPUs, without communication beside it."""
    price = price_kernels(GPU, [Gemm("mm", size, size, size, "bf16", layout="NN")])
    return float(price.seconds[0]) * (1 + slowest_excess(gpus, GPU.architecture.speed_spread))


def collective_s(kind: str, size: int, ranks: tuple[int, ...]) -> float:
    group = communicator_of("g", ranks, cluster_of(8))
    return price_collective(kind, size, group, GPU, cluster_of(8), "bf16").seconds


def transfer_s(size: int, first: int, second: int, ranks: tuple[int, ...]) -> float:
    cluster = cluster_of(8)
    group = narrowed(communicator_of("g", ranks, cluster), levels_crossed(first, second, cluster))
    return price_send_recv(size, group.nodes > 1, group, GPU, cluster).seconds


def cluster_of(world_size: int):  # type: ignore[no-untyped-def]
    return PAIR if world_size == 8 else replace(PAIR, num_nodes=1, gpus_per_node=world_size)


def finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]


def play(*scripts: Script, framework: Framework = INSTANT, **options: object) -> TracedStep:
    traces = [script.trace() for script in scripts]
    step = replay_ranks(traces, GPU, PAIR, framework, **options)  # type: ignore[arg-type]
    for rank in step.ranks:
        assert sum(rank.breakdown_s.values()) == pytest.approx(step.step_time_s)
        assert set(rank.breakdown_s) <= set(PARTS)
    return step


def alone() -> Script:
    return Script(0, 1)


def job(world_size: int, write: Callable[[Script], None]) -> list[Script]:
    scripts = [Script(rank, world_size) for rank in range(world_size)]
    for script in scripts:
        script.group(TP, *range(world_size))
        write(script)
    return scripts


def overlapping(script: Script) -> None:
    work = script.collective(TP, 256 * MIB, wait=False)
    script.gemm(BIG)
    script.work_wait(work)
    script.gemm(SMALL)


def pipeline(stages: int, micro_batches: int) -> list[Script]:
    """Plain 1F1B on one node, a small GEMM forward, a big one backward, messages of a byte."""
    return [stage_script(stage, stages, micro_batches) for stage in range(stages)]


def stage_script(stage: int, stages: int, micro_batches: int) -> Script:
    name = "PIPELINE_MODEL_PARALLEL_GROUP"
    script = Script(stage, stages)
    script.group(name, *range(stages))

    def exchange(*calls: tuple[str, int]) -> None:
        """Sends and receives of one call; those beyond the ends of the pipeline are left out."""
        batch = len(script.events)
        inside = [(kind, peer) for kind, peer in calls if 0 <= peer < stages]
        for work in [script.transfer(kind, name, peer, 1, batch) for kind, peer in inside]:
            script.work_wait(work)

    before, after = stage - 1, stage + 1
    warm_up = min(stages - stage - 1, micro_batches)
    for _ in range(warm_up):
        exchange(("recv", before))
        script.gemm(SMALL)
        exchange(("send", after))
    steady = micro_batches - warm_up
    if steady:
        exchange(("recv", before))
    for micro in range(steady):
        script.gemm(SMALL)
        exchange(("send", after), ("recv", after))
        script.gemm(BIG)
        more = [("recv", before)] if micro + 1 < steady else []
        exchange(("send", before), *more)
    for _ in range(warm_up):
        exchange(("recv", after))
        script.gemm(BIG)
        exchange(("send", before))
    return script


def steps(count: int) -> Script:
    script = Script(0, 1, begun=False)
    script.gemm(8192)
    for number in range(count):
        script.step(number)
        script.gemm(BIG if number else 8192)
        script.step(number, "optimizer")
        script.gemm(SMALL)
    return script
