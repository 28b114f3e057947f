"""Fused regions and blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.virtual_cluster.traces.lowering.tensors import op, t
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.virtual_cluster.traces.events import (
    Alloc,
    Begin,
    Collective,
    End,
    Event,
    Free,
    HostGap,
    PointToPoint,
    Resize,
    Synchronise,
    ValueRead,
    WorkWait,
)
from trainscout.simulators.virtual_cluster.traces.lowering.block import block_ops
from trainscout.simulators.virtual_cluster.traces.lowering.regions import lower_events
from trainscout.simulators.virtual_cluster.walk.launches import Launches

# Bytes of one tensor of the tests.
SIZE = 1024 * 2


def x(storage: int) -> object:
    return t(1024, storage=storage)


def add(first: int, second: int, out: int) -> Event:
    return op("aten.add.Tensor", (x(first), x(second)), x(out))  # type: ignore[arg-type]


def alloc(storage: int) -> Event:
    return Alloc(storage, SIZE, 0)


def kernels(events: list[Event]) -> list[tuple[int, str, int]]:
    """Memory-bound kernels: where, name and bytes."""
    return [
        (index, kernel.name, kernel.bytes)
        for index, lowered in enumerate(lower_events(events))
        if lowered is not None
        for kernel in lowered.kernels
        if isinstance(kernel, ir.Streaming)
    ]


def test_a_region_reads_what_is_outside_and_writes_what_stays() -> None:
    events = [
        Begin("fused", "bias_add_add"),
        Alloc(3, 0, 0),
        add(1, 2, 3),
        alloc(4),
        add(3, 1, 4),
        Free(3),
        HostGap(1e-6),
        End("fused"),
        add(4, 4, 5),
    ]
    # Storages 1 and 2 are read, 1 twice but once from memory; 3 never reaches it; 4 stays.
    assert kernels(events) == [(4, "fused_add", 3 * SIZE), (8, "add", 3 * SIZE)]
    assert lower_events(events)[2].rule == "fused region"  # type: ignore[union-attr]


def test_backward_computes_again_what_has_no_memory() -> None:
    forward = [Begin("fused", ""), Alloc(3, 0, 0), add(1, 2, 3), Alloc(4, 0, 0), add(3, 3, 4)]
    square = t(32, 32, storage=4)
    product = [Resize(4, SIZE), op("aten.mm.default", (square, square), t(32, 32, storage=9))]
    backward = [Begin("fused", "backward"), alloc(5), add(3, 4, 5), End("fused")]
    # Forward writes 4, which a product reads; 3 is read as 1 and 2 it was made of.
    found = kernels([*forward, *product, End("fused"), *backward])
    assert found == [(4, "fused_add", 3 * SIZE), (10, "fused_add", 4 * SIZE)]
    # Another kernel of the region it was made in finds it written.
    found = kernels([*forward, *product, alloc(6), add(3, 9, 6), End("fused")])
    assert found == [(4, "fused_add", 3 * SIZE), (8, "fused_add", 4 * SIZE)]


def test_what_takes_a_gradient_is_no_part_of_the_region() -> None:
    events = [
        *(Begin("fused", ""), Alloc(3, 0, 0), add(1, 2, 3)),
        *(Begin("aside", ""), add(7, 8, 9), End("aside")),
        *(alloc(4), add(3, 3, 4), End("fused")),
    ]
    assert kernels(events) == [(4, "add", 3 * SIZE), (7, "fused_add", 3 * SIZE)]


def test_live_launches_what_a_trace_is_lowered_to() -> None:
    aside = (Begin("aside", ""), add(7, 3, 9), End("aside"))
    sent = Collective("all_reduce", "0", 0, SIZE, SIZE, "bfloat16", 1, 1)
    events = [
        *(Begin("fused", ""), Alloc(3, 0, 0), add(1, 2, 3), alloc(5), add(8, 2, 5)),
        *(*aside, alloc(4), add(3, 5, 4), sent, add(4, 4, 6), End("fused"), add(6, 4, 5)),
    ]
    launches = Launches()
    live = [launch for event in events for launch in launches.take(event)]
    # A gradient's hook waits for what it reads alone, the rest of the region goes on.
    names = ["fused_add", "add", "fused_add", "add", "add"]
    assert [kernel.name for launch in live for kernel in launch.content.kernels] == names
    assert [launch.content for launch in live] == [
        lowered for lowered in lower_events(events) if lowered is not None and lowered.kernels
    ]


def test_live_forgets_what_is_gone() -> None:
    launches = Launches()
    inside = [Begin("fused", ""), Alloc(3, 0, 0), add(1, 2, 3), alloc(4), add(3, 3, 4)]
    for event in (*inside, Free(3), End("fused"), Free(4)):
        launches.take(event)
    assert launches._fusion.sizes == launches._fusion._unwritten == {}


def product(source: int, out: int) -> Event:
    square = t(32, 32, storage=source)
    return op("aten.mm.default", (square, t(32, 32, storage=9)), t(32, 32, storage=out))


def test_products_stay_and_come_after_what_they_read() -> None:
    events: list[Event] = [
        Begin("fused", ""),
        add(1, 2, 3),
        add(3, 2, 4),
        product(4, 10),
        add(4, 2, 5),
        add(5, 10, 6),
        End("fused"),
    ]
    found = lower_events(events)
    assert [len(each.kernels) if each else 0 for each in found] == [0, 0, 1, 1, 0, 1, 0]
    assert isinstance(found[3].kernels[0], ir.Gemm)  # type: ignore[union-attr]


def test_a_gated_activation_fuses_across_the_product_of_its_gate() -> None:
    events: list[Event] = [
        Begin("fused", ""),
        product(8, 10),
        Alloc(11, 0, 0),
        op("aten.silu.default", (x(10),), x(11)),  # type: ignore[arg-type]
        product(8, 12),
        op("aten.mul.Tensor", (x(11), x(12)), x(13)),  # type: ignore[arg-type]
        Free(11),
        product(13, 14),
        End("fused"),
    ]
    found = lower_events(events)
    assert [len(each.kernels) if each else 0 for each in found] == [0, 1, 0, 0, 1, 2, 0, 1, 0]
    # Two products are read and the gated one is written; the activation itself is not. One kernel
    # goes over two of them as an activation does.
    expected = (
        ir.Streaming("fused_silu_mul", "activation", 2 * SIZE),
        ir.Streaming("fused_silu_mul", "elementwise", SIZE, launches=0),
    )
    assert found[5].kernels == expected  # type: ignore[union-attr]


def test_what_others_still_read_is_written() -> None:
    events: list[Event] = [
        Begin("fused", ""),
        alloc(3),
        add(1, 2, 3),
        alloc(4),
        add(3, 2, 4),
        add(3, 1, 5),
        Free(3),
        product(4, 10),
        add(5, 6, 7),
        End("fused"),
    ]
    # Storages 1 and 2 are read, 3 and 4 written; then 3, 1 and 6 are read, 5 and 7 written.
    assert [size for _, _, size in kernels(events)] == [4 * SIZE, 5 * SIZE]


def test_operations_that_share_nothing_stay_apart() -> None:
    events = [Begin("fused", ""), add(1, 2, 3), add(4, 5, 6), add(3, 2, 7), End("fused")]
    assert [index for index, _, _ in kernels(events)] == [2, 3]


def test_nested_regions_are_one_and_communication_cuts() -> None:
    wait = WorkWait(1, 0)
    events: list[Event] = [
        Begin("fused", "outer"),
        add(1, 2, 3),
        Begin("module", "layer"),
        Begin("fused", "inner"),
        add(1, 2, 4),
        End("fused"),
        add(1, 2, 5),
        End("module"),
        wait,
        add(1, 2, 6),
        End("fused"),
    ]
    assert [index for index, _, _ in kernels(events)] == [6, 9]


def test_a_region_of_one_is_that_one() -> None:
    assert kernels([Begin("fused", ""), add(1, 2, 3), End("fused")]) == [(1, "add", 3 * SIZE)]


def test_a_norm_in_a_region_prices_it_as_a_norm() -> None:
    row = t(16, 64)
    norm = op("aten.native_layer_norm.default", (row, (64,), None, None, 1e-5), row)
    added = op("aten.add.Tensor", (row, row), row)
    events: list[Event] = [Begin("fused", ""), added, norm, End("fused")]
    (kernel,) = lower_events(events)[2].kernels  # type: ignore[union-attr]
    assert isinstance(kernel, ir.Streaming)
    assert kernel.kind == "norm_fwd_plain"


def collective(work: int, kind: str = "all_gather", group: str = "g") -> Collective:
    return Collective(kind, group, work, 100, 800, "bfloat16", 0, work)


def test_blocks_count_what_runs_beside_communication() -> None:
    events: list[Event] = [
        collective(1),
        add(1, 2, 3),
        add(1, 2, 3),
        WorkWait(1, 0),
        collective(2, "reduce_scatter"),
        WorkWait(2, 0, blocks_host=True),
        ValueRead("item", 1, "exact", 0),
        PointToPoint("send", "p", 4, 0, 64, "bfloat16", 0, 3, batch=1),
        PointToPoint("recv", "p", 4, 0, 96, "bfloat16", 0, 4, batch=1),
        add(1, 2, 3),
        Synchronise("device"),
        collective(5, "barrier"),
    ]
    found = block_ops(events, {"g": "tp", "p": "pp"})
    assert [index for index, _ in found] == [0, 1, 2, 4, 5, 6, 7, 9, 10, 11]
    ops = [each for _, each in found]
    assert ops[0] == ir.Collective("all_gather", "all_gather", 800, "tp", "bf16", overlaps=2)
    assert ops[3] == ir.Collective("reduce_scatter", "reduce_scatter", 800, "tp", "bf16")
    assert ops[6] == ir.SendRecv("send", 96, "pp", overlaps=1)
    assert [type(each) for each in ops].count(ir.HostSync) == 4


def test_groups_have_to_be_named() -> None:
    with pytest.raises(InputError, match=r"group=g: is not known"):
        block_ops([collective(1)], {"h": "tp"})


_NAMES = st.sampled_from(["add.Tensor", "maximum.default", "mul.Tensor", "sub.Tensor"])


@given(
    st.lists(st.tuples(_NAMES, st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=8)
)
def test_fusing_never_moves_more_than_one_by_one(
    calls: list[tuple[str, int, int, bool]],
) -> None:
    """Each call reads two tensors there are, and makes one, which may have no memory."""
    inside: list[Event] = []
    there = [100, 101]
    read: set[int] = set()
    for number, (name, first, second, passes) in enumerate(calls):
        sources = [there[first % len(there)], there[second % len(there)]]
        read |= {source for source in sources if source >= 100}
        made = op(f"aten.{name}", tuple(map(x, sources)), x(number))  # type: ignore[arg-type]
        inside += [Alloc(number, 0 if passes else SIZE, 0), made]
        there.append(number)
    alone = sum(size for _, _, size in kernels(inside))
    fused = sum(size for _, _, size in kernels([Begin("fused", ""), *inside, End("fused")]))
    assert fused <= alone
    assert fused >= SIZE * (len(read) + sum(not passes for *_, passes in calls))
