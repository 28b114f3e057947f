"""What only lives inside a fused region takes no memory."""

from __future__ import annotations

from trainscout.simulators.virtual_cluster.traces.events import (
    Alloc,
    Begin,
    Collective,
    End,
    Event,
    Free,
    Op,
    TensorSpec,
)
from trainscout.simulators.virtual_cluster.traces.fused import storages_within_fusions

FUSED, CLOSED = Begin("fused", "gelu"), End("fused")


def test_storages_must_come_and_go_within_one_region() -> None:
    events: list[Event] = [
        *(Alloc(1, 8, 0), FUSED, Alloc(2, 8, 0), Alloc(3, 8, 0), Free(1), Free(2), CLOSED),
        *(FUSED, Free(3), Alloc(4, 8, 0), FUSED, Alloc(5, 8, 0), CLOSED, Free(5), CLOSED),
        *(Free(4), Begin("user", "step"), Alloc(6, 8, 0), Free(6), End("user")),
    ]
    assert storages_within_fusions(events) == {2, 5}


def test_what_a_kernel_of_its_own_touches_is_in_memory() -> None:
    tensors = {number: TensorSpec("float32", (2,), number) for number in range(1, 6)}
    gathered = Collective("all_gather", "0", 0, 8, 8, "float32", 0, 0, inputs=(4,), outputs=())
    events: list[Event] = [
        *(FUSED, Alloc(1, 8, 0), Alloc(2, 8, 0), Alloc(3, 8, 0), Alloc(4, 8, 0)),
        Op("aten.mul.Tensor", (tensors[1], 2.0), (tensors[2],), 0),
        Op("aten.mm.default", ((tensors[2],), tensors[2]), (tensors[3],), 0),
        *(gathered, Alloc(5, 8, 0), Op("mine.scaled.default", (tensors[2],), (tensors[5],), 0)),
        *(Free(number) for number in range(1, 6)),
        CLOSED,
    ]
    assert storages_within_fusions(events) == {1}


def test_what_backward_computes_again_is_not_in_memory() -> None:
    """What another region, the host's own operations or a product reads is."""
    tensors = {number: TensorSpec("float32", (2,), number) for number in range(1, 8)}

    def read(*numbers: int, by: str = "aten.mul.Tensor") -> Op:
        return Op(by, tuple(tensors[each] for each in numbers), (), 0)

    events: list[Event] = [
        *(FUSED, *(Alloc(number, 8, 0) for number in range(1, 6)), Alloc(7, 8, 0)),
        *(Op("aten.native_dropout.default", (), (tensors[1], tensors[7]), 0), CLOSED),
        *(read(2), FUSED, read(3), CLOSED),
        *(Begin("fused", "gelu.backward"), read(1, 2, 3, 4, 7), read(4, by="aten.mm.default")),
        *(Alloc(6, 8, 0), CLOSED, *(Free(number) for number in range(1, 8))),
    ]
    assert storages_within_fusions(events) == {1}


def test_what_is_read_again_after_a_kernel_that_used_it_is_in_memory() -> None:
    """A residual stream: read by a norm before a product, and by the sum after it."""
    tensors = {number: TensorSpec("float32", (2,), number) for number in range(1, 5)}

    def residual(*summed: int) -> frozenset[int]:
        events: list[Event] = [
            *(FUSED, *(Alloc(number, 8, 0) for number in range(1, 5))),
            Op("aten.mul.Tensor", (2.0,), (tensors[1],), 0),
            Op("aten.native_layer_norm.default", (tensors[1],), (tensors[2],), 0),
            Op("aten.mm.default", (tensors[2],), (tensors[3],), 0),
            Op("aten.add.Tensor", tuple(tensors[each] for each in summed), (tensors[4],), 0),
            *(*(Free(number) for number in range(1, 5)), CLOSED),
        ]
        return storages_within_fusions(events)

    assert residual(1, 3) == {4}
    assert residual(3) == {1, 4}
