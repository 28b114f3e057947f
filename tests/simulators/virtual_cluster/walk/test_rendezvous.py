"""Who comes to a communication, with what, and what it is priced as."""

from __future__ import annotations

from itertools import count

import pytest

from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.virtual_cluster.traces.events import Collective, PointToPoint
from trainscout.simulators.virtual_cluster.walk.rendezvous import (
    Call,
    MismatchError,
    RendezvousTable,
)


def collective(kind: str, bytes_in: int, bytes_out: int) -> Collective:
    return Collective(kind, "g", 0, bytes_in, bytes_out, "bfloat16", 0, 1)


@pytest.mark.parametrize(
    ("kind", "sizes", "priced", "size"),
    [
        ("all_reduce", (8, 8), "all_reduce", 8),
        ("all_gather", (8, 64), "all_gather", 64),
        ("reduce_scatter", (64, 8), "reduce_scatter", 64),
        # NCCL has no barrier, gather or scatter.
        ("barrier", (0, 0), "all_reduce", 4),
        ("gather", (8, 64), "all_gather", 64),
        ("scatter", (64, 8), "all_gather", 64),
    ],
)
def test_collectives_are_priced_as_nccl_runs_them(
    kind: str, sizes: tuple[int, int], priced: str, size: int
) -> None:
    operation = Call.of(collective(kind, *sizes)).operation("g")
    assert operation == ir.Collective(priced, priced, size, "g", "bf16")


@pytest.mark.parametrize(("kind", "root"), [("gather", (8, 64)), ("scatter", (64, 8))])
def test_the_root_has_all_shares(kind: str, root: tuple[int, int]) -> None:
    table = RendezvousTable[int]()
    table.arrive("key", 1, Call.of(collective(kind, 8, 8)), (0, 1, 2), lambda: 0)
    found = table.arrive("key", 0, Call.of(collective(kind, *root)), (0, 1, 2), lambda: 0)
    assert found.call.bytes == 64


def test_both_sides_of_a_transfer_are_one_operation() -> None:
    ends = [PointToPoint(kind, "g", 1, 0, 8, "bfloat16", 0, 1) for kind in ("send", "recv")]
    assert {Call.of(each).operation("g") for each in ends} == {
        ir.SendRecv("send_recv", 8, "g"),
    }


def test_the_last_to_come_closes_a_rendezvous() -> None:
    table, tasks = RendezvousTable[int](), count()
    call = Call("all_reduce", 8, "bfloat16")
    first = table.arrive("key", 1, call, (0, 1), lambda: next(tasks), "rank 1")
    assert [each.missing for each in table] == [[0]]
    assert table.arrive("key", 0, call, (0, 1), lambda: next(tasks)) is first
    assert list(table) == []
    # The same key names another one from now on.
    assert table.arrive("key", 0, call, (0, 1), lambda: next(tasks)).task == 1


@pytest.mark.parametrize(
    ("who", "call"),
    [
        (1, Call("all_reduce", 16, "bfloat16")),
        (1, Call("all_gather", 8, "bfloat16")),
        (0, Call("all_reduce", 8, "bfloat16")),
        (2, Call("all_reduce", 8, "bfloat16")),
    ],
)
def test_what_does_not_fit_is_refused_unless_it_was_checked_before(who: int, call: Call) -> None:
    tables = RendezvousTable[int](), RendezvousTable[int](checked=True)
    for table in tables:
        table.arrive("key", 0, Call("all_reduce", 8, "bfloat16"), (0, 1), lambda: 7, "rank 0")
    with pytest.raises(MismatchError, match=f"rank {who}"):
        tables[0].arrive("key", who, call, (0, 1), lambda: 8, f"rank {who}")
    assert tables[1].arrive("key", who, call, (0, 1), lambda: 8).task == 7


def test_a_rendezvous_is_as_large_as_its_largest_call() -> None:
    table = RendezvousTable[int](checked=True)
    for who, size in enumerate((8, 32, 16)):
        table.arrive("key", who, Call("all_to_all", size, "int8"), range(3), lambda: 0)
    assert [(each.call.bytes, each.missing) for each in table] == [(32, [])]
