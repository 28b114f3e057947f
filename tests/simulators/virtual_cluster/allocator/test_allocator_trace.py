"""Traces played on the allocator."""

import numpy as np
import pytest

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.allocator.allocator_trace import (
    Clock,
    memory_over_time,
)
from trainscout.simulators.virtual_cluster.traces.events import (
    Alloc,
    Begin,
    EmptyCache,
    End,
    Free,
    HostGap,
    RecordStream,
    Resize,
    Synchronise,
)

MIB = 2**20
GIB = 2**30


def test_rows_follow_the_events_that_touch_memory() -> None:
    events = (
        Alloc(1, 30 * MIB, 0),
        HostGap(1e-3),
        Alloc(2, 1000, 0),
        Free(1),
        EmptyCache(),
    )
    memory = memory_over_time(events, GIB)
    assert memory.event.tolist() == [0, 2, 3, 4]
    assert memory.allocated_bytes.tolist() == [30 * MIB, 30 * MIB + 1024, 1024, 1024]
    assert memory.requested_bytes.tolist()[-1] == 1000
    assert memory.reserved_bytes.tolist() == [30 * MIB, 32 * MIB, 32 * MIB, 2 * MIB]
    assert memory.peak_allocated_bytes == 30 * MIB + 1024
    assert memory.peak_reserved_bytes == 32 * MIB
    assert memory.at_peak == {
        "allocated": 30 * MIB + 1024,
        "deferred": 0,
        "free": 2 * MIB - 1024,
        "largest_free": 2 * MIB - 1024,
    }


def test_resizing_frees_and_refills() -> None:
    events = (Alloc(1, 40 * MIB, 0), Resize(1, 0), Resize(1, 40 * MIB), Free(1))
    memory = memory_over_time(events, GIB)
    assert memory.allocated_bytes.tolist() == [40 * MIB, 0, 40 * MIB, 0]
    assert memory.peak_reserved_bytes == 40 * MIB


def test_without_a_clock_the_device_keeps_pace() -> None:
    events = (Alloc(1, 30 * MIB, 0), RecordStream(1, 5), Free(1), Alloc(2, 30 * MIB, 0))
    assert memory_over_time(events, GIB).peak_reserved_bytes == 30 * MIB


@pytest.mark.parametrize(("passed_s", "reserved"), [(2.5, 60), (2.0, 30)])
def test_with_a_clock_time_releases(passed_s: float, reserved: int) -> None:
    events = (
        Alloc(1, 30 * MIB, 0),
        RecordStream(1, 5),
        Free(1),
        Synchronise("device"),
        Alloc(2, 30 * MIB, 0),
    )
    host_s = np.array([0.0, 0.0, 1.0, 1.0, 2.0])
    clock = Clock(host_s, lambda stream, event: passed_s if (stream, event) == (5, 2) else np.inf)
    memory = memory_over_time(events, GIB, clock=clock)
    assert memory.peak_reserved_bytes == reserved * MIB


def test_running_out_ends_the_play() -> None:
    events = (Alloc(1, 600 * MIB, 0), Alloc(2, 600 * MIB, 0), Free(1))
    memory = memory_over_time(events, GIB)
    assert memory.event.tolist() == [0]
    assert memory.out_of_memory is not None
    assert memory.out_of_memory.requested_bytes == 600 * MIB


@pytest.mark.parametrize("event", [Free(3), Resize(3, 10), RecordStream(3, 1)])
def test_what_was_never_allocated_is_refused(event: object) -> None:
    with pytest.raises(InputError, match=r"events\[0\].storage=3"):
        memory_over_time((event,), GIB)  # type: ignore[arg-type]


def test_storages_without_bytes_take_no_memory() -> None:
    memory = memory_over_time((Alloc(1, 0, 0), RecordStream(1, 2), Free(1)), GIB)
    assert memory.peak_reserved_bytes == 0


def test_what_a_fused_kernel_makes_takes_memory_once_it_leaves() -> None:
    events = (
        Begin("fused", "f"),
        Alloc(1, 0, 0),
        Alloc(2, 0, 0),
        Free(1),
        Resize(2, 30 * MIB),
        End("fused"),
        Free(2),
    )
    assert memory_over_time(events, GIB).peak_reserved_bytes == 30 * MIB
