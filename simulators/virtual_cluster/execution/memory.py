"""Memory of one rank over its trace: the allocator's events at the times of the replay."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.collectives import price_collective
from trainscout.simulators.predictor.memory.footprint import process_bytes
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.replay.engine import Floats, Times
from trainscout.simulators.predictor.workload.ir import Communicator
from trainscout.simulators.virtual_cluster.allocator.allocator import AllocatorSettings
from trainscout.simulators.virtual_cluster.allocator.allocator_trace import (
    Clock,
    MemoryOverTime,
    memory_over_time,
)
from trainscout.simulators.virtual_cluster.execution.issue import Issued
from trainscout.simulators.virtual_cluster.traces.events import Event

# A collective large enough to use every channel its communicator opens.
_LARGE_BYTES = 256 * 2**20
# What a rank that does not fit would need is found on a device so many times larger.
_AMPLE = 16


@dataclass(frozen=True)
class RankMemory:
    """Memory of one rank, setup included.

    ``over_time``: see ``MemoryOverTime``, as far as the rank got, or on a larger device when it
    ran out of memory. ``time_s``: of each row, from the beginning of the step (NaN before).
    ``outside_bytes``: by kind, what the allocator does not see. ``headroom_bytes``: what is left
    of ``capacity_bytes`` at the peak, negative by how much it misses. ``runs_out``: even after
    the allocator has given back what it cached.
    """

    over_time: MemoryOverTime
    time_s: Floats
    outside_bytes: dict[str, int]
    capacity_bytes: int
    headroom_bytes: int
    runs_out: bool

    @property
    def peak_allocated_bytes(self) -> int:
        return self.over_time.peak_allocated_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        return self.over_time.peak_reserved_bytes


def rank_memory(
    events: Sequence[Event],
    issued: Issued,
    times: Times,
    begin_s: float,
    gpu: Gpu,
    cluster: Cluster,
    groups: Sequence[Communicator],
    settings: AllocatorSettings,
) -> RankMemory:
    """Play a rank's allocations at the host's pace.

    ``begin_s``: when the step begins. ``groups``: the communicators the rank uses.
    """
    outside = outside_of(gpu, cluster, groups)
    host_s = _host_s(issued, times)
    clock = Clock(host_s, _Passing(issued, times))
    used = sum(outside.values())
    device = gpu.memory_bytes
    memory = memory_over_time(events, device, settings, used, clock)
    runs_out = memory.out_of_memory is not None
    if runs_out:
        device *= _AMPLE
        memory = memory_over_time(events, device, settings, used, clock)
    capacity = int(gpu.memory_bytes * (1 - cluster.memory_reserve))
    played = np.array(issued.host)[memory.event] >= 0
    time_s = np.where(played, host_s[memory.event] - begin_s, np.nan)
    headroom = capacity - used - memory.peak_reserved_bytes
    return RankMemory(memory, time_s, outside, capacity, headroom, runs_out)


def outside_of(gpu: Gpu, cluster: Cluster, groups: Sequence[Communicator]) -> dict[str, int]:
    """Bytes a process holds outside the allocator's events: context, NCCL's buffers, and scratch
    that libraries are given and traces do not show."""
    channels = sum(
        price_collective("all_reduce", _LARGE_BYTES, group, gpu, cluster).channels
        for group in groups
        if group.size > 1
    )
    workspace = {"workspace": gpu.architecture.workspace_bytes}
    return process_bytes(gpu, cluster, channels) | workspace


def _host_s(issued: Issued, times: Times) -> Floats:
    """When the host came to each event; 0 before what was played."""
    tasks = np.array(issued.host)
    return np.where(tasks >= 0, times.end[tasks], 0.0)


class _Passing:
    """When a stream had run what was launched on it before an event."""

    def __init__(self, issued: Issued, times: Times) -> None:
        self._events = {
            stream: [event for event, _ in pairs] for stream, pairs in issued.launches.items()
        }
        self._ends = {
            stream: np.maximum.accumulate(times.end[[task for _, task in pairs]])
            for stream, pairs in issued.launches.items()
        }

    def __call__(self, stream: int, event: int) -> float:
        before = bisect_left(self._events.get(stream, []), event)
        return float(self._ends[stream][before - 1]) if before else 0.0
