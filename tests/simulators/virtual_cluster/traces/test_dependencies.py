"""What a launch waits for: its stream, events and communications, and what the host waited for."""

from __future__ import annotations

from trainscout.simulators.virtual_cluster.traces.events import (
    Collective,
    Event,
    EventRecord,
    EventWait,
    HostGap,
    Op,
    PointToPoint,
    Synchronise,
    ValueRead,
    WorkWait,
)
from trainscout.simulators.virtual_cluster.traces.rank_walk import Dependencies


def waits_of(*events: Event) -> dict[int, tuple[int, ...]]:
    """By place in ``events``, what each launch waits for."""
    dependencies, found = Dependencies(0), {}
    for index, event in enumerate(events):
        if isinstance(event, Op | Collective | PointToPoint):
            found[index] = dependencies.launch(index, event)
        elif isinstance(event, HostGap):
            found[index] = dependencies.host_work(index)
        else:
            dependencies.follow(event)
    return found


def op(stream: int = 0) -> Op:
    return Op("aten.mul.Tensor", (), (), stream)


def reduce_on(group: str, work: int) -> Collective:
    return Collective("all_reduce", group, 0, 8, 8, "float32", 0, work)


def test_streams_run_in_order_and_events_join_them() -> None:
    assert waits_of(op(0), op(0), op(1)) == {0: (), 1: (0,), 2: ()}
    assert waits_of(op(0), EventRecord(9, 0), op(0), EventWait(9, 1), op(1)) == {
        0: (), 2: (0,), 4: (0,),
    }  # fmt: skip


def test_communication_overlaps_until_it_is_waited_for() -> None:
    assert waits_of(op(), reduce_on("g", 1), op(), reduce_on("g", 2), WorkWait(1, 0), op()) == {
        0: (), 1: (0,), 2: (0,), 3: (1, 2), 5: (1, 2),
    }  # fmt: skip
    assert waits_of(reduce_on("g", 1), reduce_on("h", 2)) == {0: (), 1: ()}


def test_batches_run_together_and_single_transfers_by_peer() -> None:
    def transfer(peer: int, batch: int | None) -> PointToPoint:
        return PointToPoint("send", "g", peer, 0, 8, "float32", 0, 1, batch)

    batched = waits_of(transfer(1, 1), transfer(2, 1), transfer(1, 2), transfer(2, 2))
    assert batched == {0: (), 1: (), 2: (0, 1), 3: (0, 1)}
    assert waits_of(transfer(1, None), transfer(2, None), transfer(1, None)) == {
        0: (), 1: (), 2: (0,),
    }  # fmt: skip


def test_what_the_host_waited_for_comes_before_later_launches() -> None:
    read = ValueRead("item", 1.0, "exact", 0)
    assert waits_of(op(0), read, op(1)) == {0: (), 2: (0,)}
    assert waits_of(op(0), op(1), Synchronise("device"), op(2))[3] == (0, 1)
    assert waits_of(op(0), EventRecord(3, 0), op(0), Synchronise("event", 3), op(1))[4] == (0,)
    blocking = WorkWait(1, 0, blocks_host=True)
    assert waits_of(reduce_on("g", 1), blocking, op(1)) == {0: (), 2: (0,)}
    # The later of two communications has waited for the earlier one.
    later, earlier = WorkWait(2, 0, blocks_host=True), WorkWait(1, 0, blocks_host=True)
    both = waits_of(reduce_on("g", 1), reduce_on("g", 2), later, earlier, op(1))
    assert both == {0: (), 1: (0,), 4: (1,)}
    gap = HostGap(1.0)
    assert waits_of(op(0), read, gap, op(1), gap, op(2)) == {
        0: (), 2: (0,), 3: (2,), 4: (2,), 5: (4,),
    }  # fmt: skip
