"""What runs before what, and who races with whom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.virtual_cluster.allocator.allocator_settings import AllocatorSettings
from trainscout.simulators.virtual_cluster.emulation.stream_order import StreamOrder, StreamUses
from trainscout.simulators.virtual_cluster.traces.events import FORWARD, SETUP

MAIN, SIDE, THIRD = 0, 1, 2
streams = st.sampled_from([MAIN, SIDE, THIRD])


def test_a_stream_is_ordered_after_itself_and_what_it_waited_for() -> None:
    order = StreamOrder()
    launched = order.launch(MAIN)
    assert order.ordered(MAIN, MAIN, launched)
    assert not order.ordered(SIDE, MAIN, launched)
    order.record(7, MAIN)
    later = order.launch(MAIN)
    order.wait(7, SIDE)
    assert order.ordered(SIDE, MAIN, launched)
    assert not order.ordered(SIDE, MAIN, later)


def test_waiting_carries_what_the_other_had_waited_for() -> None:
    order = StreamOrder()
    launched = order.launch(MAIN)
    order.record(1, MAIN)
    order.wait(1, SIDE)
    order.record(2, SIDE)
    order.wait(2, THIRD)
    assert order.ordered(THIRD, MAIN, launched)


def test_what_the_host_waited_for_is_before_everything() -> None:
    order = StreamOrder()
    first, second = order.launch(MAIN), order.launch(SIDE)
    order.host_wait_stream(MAIN)
    assert order.ordered(THIRD, MAIN, first)
    assert not order.ordered(THIRD, SIDE, second)
    order.host_wait_device()
    assert order.ordered(THIRD, SIDE, second)


@given(st.lists(st.tuples(streams, streams), max_size=20), streams)
def test_order_only_grows(waits: list[tuple[int, int]], reader: int) -> None:
    order = StreamOrder()
    launched = order.launch(MAIN)
    was = False
    for number, (recorder, waiter) in enumerate(waits):
        order.record(number, recorder)
        order.wait(number, waiter)
        now = order.ordered(reader, MAIN, launched)
        assert now >= was
        was = now


def test_reads_race_with_writes_of_the_same_bytes_only() -> None:
    order, uses = StreamOrder(), StreamUses()
    uses.note(MAIN, order.launch(MAIN), (0, 512), writes=True)
    assert list(uses.conflicts(order, SIDE, (256, 768), writes=False)) == [(MAIN, "written")]
    assert not list(uses.conflicts(order, SIDE, (512, 768), writes=False))
    assert not list(uses.conflicts(order, MAIN, (0, 512), writes=True))


def test_writes_race_with_reads_and_reads_do_not_race() -> None:
    order, uses = StreamOrder(), StreamUses()
    uses.note(MAIN, order.launch(MAIN), (0, 512), writes=False)
    assert not list(uses.conflicts(order, SIDE, (0, 512), writes=False))
    assert list(uses.conflicts(order, SIDE, (0, 512), writes=True)) == [(MAIN, "read")]
    order.record(1, MAIN)
    order.wait(1, SIDE)
    assert not list(uses.conflicts(order, SIDE, (0, 512), writes=True))


def test_what_set_up_launched_is_over_once_training_begins() -> None:
    # DistributedDataParallel made on a stream of its own, as Lightning does: PyTorch's notes on
    # CUDA graphs ask for that, and for no wait.
    pytest.importorskip("torch")
    from trainscout.simulators.virtual_cluster.emulation.memory import DeviceMemory, DeviceStorage

    flagged: list[Any] = []
    recorder: Any = SimpleNamespace(phase=SETUP, violation=lambda *said: flagged.append(said))
    memory = DeviceMemory(recorder, StreamOrder(), 2**30, 0, AllocatorSettings, id)
    part = [(DeviceStorage(0, 512, MAIN, None), (0, 512))]
    memory.used([], part, SIDE)
    recorder.phase = FORWARD
    memory.used(part, [], MAIN)
    assert not flagged
    memory.used([], part, SIDE)
    assert [kind for kind, _ in flagged] == ["wrong stream"]
