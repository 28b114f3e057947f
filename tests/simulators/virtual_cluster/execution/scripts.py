"""Hand-made traces: a rank's events, written as the calls its script makes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from tests.samples import CLUSTER, GPU
from trainscout.simulators.predictor.collectives.price import price_collective, price_send_recv
from trainscout.simulators.predictor.kernels.prices import price_kernels
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.replay.prices import slowest_excess
from trainscout.simulators.predictor.workload.ir import Gemm
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
