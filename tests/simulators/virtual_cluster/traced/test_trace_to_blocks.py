"""Events of a layer become blocks: operations, what stays, how much is held at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.virtual_cluster.traced.trace_to_blocks import (
    LeftoverError,
    Recording,
    blocks_of,
)
from trainscout.simulators.virtual_cluster.traces import events

WEIGHT = events.TensorSpec("bfloat16", (64, 32), 1, (1, 64))


def product(source: int, target: int) -> events.Op:
    left = events.TensorSpec("bfloat16", (128, 64), source)
    return events.Op(
        "aten.mm.default", (left, WEIGHT), (events.TensorSpec("bfloat16", (128, 32), target),), 0
    )


def gather(storage: int, work: int) -> events.Collective:
    return events.Collective(
        "all_gather", "7", 0, 500, 1000, "bfloat16", 0, work, outputs=(storage,)
    )


FORWARD: tuple[events.Event, ...] = (
    events.Alloc(10, 16384, 0),  # the input, kept
    events.Alloc(11, 1000, 0),
    gather(11, 1),
    events.WorkWait(1, 0),
    events.Alloc(12, 8192, 0),
    product(10, 12),
    events.Free(11),
    events.Alloc(13, 8192, 0),  # the output
    events.ValueRead("item", 1.0, "exact", 0),
)
BETWEEN: tuple[events.Event, ...] = (events.Free(13), events.Alloc(20, 8192, 0))
BACKWARD: tuple[events.Event, ...] = (
    events.Alloc(21, 1000, 0),
    gather(21, 2),
    product(10, 20),
    product(10, 20),
    events.WorkWait(2, 0),
    events.Free(21),
    events.Free(20),
    events.Free(12),
    events.Free(10),
)
RECORDING = Recording("layer", {}, FORWARD, BETWEEN, BACKWARD, 8192, frozenset({2}), {"7": "tp"})


def test_operations_in_launch_order() -> None:
    forward, backward = blocks_of(RECORDING)
    assert [type(op) for op in forward.ops] == [ir.Collective, ir.Gemm, ir.HostSync, ir.Alloc]
    assert [type(op) for op in backward.ops] == [ir.Collective, ir.Gemm, ir.Gemm, ir.Free]
    first, product_ = forward.ops[0], forward.ops[1]
    assert first == ir.Collective("all_gather", "all_gather", 1000, "tp", "bf16")
    assert isinstance(product_, ir.Gemm)
    assert (product_.m, product_.n, product_.k, product_.layout) == (128, 32, 64, "TN")
    assert (forward.name, backward.name) == ("layer_forward", "layer_backward")


def test_what_flies_overlaps_the_kernels_before_its_wait() -> None:
    _, backward = blocks_of(RECORDING)
    first = backward.ops[0]
    assert isinstance(first, ir.Collective)
    assert first.overlaps == 2


def test_the_input_counts_and_the_output_does_not() -> None:
    forward, backward = blocks_of(RECORDING)
    assert forward.saved_bytes == 16384 + 8192 == -backward.saved_bytes


def test_peaks_are_over_what_was_live_before() -> None:
    forward, backward = blocks_of(RECORDING)
    assert forward.peak_bytes == 16384 + 8192 + 8192
    # The output's gradient and the gathered tensor, beside what was kept.
    assert backward.peak_bytes == 8192 + 1000


def test_what_a_module_remembers_may_stay_in_place_of_what_it_did() -> None:
    again: tuple[events.Event, ...] = (events.Free(5), events.Alloc(6, 300, 0))
    forward, backward = blocks_of(replace(RECORDING, before={5: 300}, forward=again + FORWARD))
    assert forward.saved_bytes == 16384 + 8192 + 300 == -backward.saved_bytes
    with pytest.raises(LeftoverError, match="20 bytes"):
        blocks_of(replace(RECORDING, before={5: 280}, forward=again + FORWARD))


def test_what_leaves_a_compiled_region_takes_memory() -> None:
    region: tuple[events.Event, ...] = (
        *(events.Begin("fused", "gelu"), events.Alloc(30, 0, 0), events.Alloc(31, 0, 0)),
        *(events.Free(30), events.Resize(31, 10**6), events.End("fused"), events.Free(31)),
    )
    forward, _ = blocks_of(replace(RECORDING, forward=(*region, *FORWARD)))
    assert forward.peak_bytes == 10**6


def test_who_issued_what() -> None:
    forward, backward = blocks_of(RECORDING)
    assert forward.forward_ops == 2
    # One of the two products was repeated by recomputation.
    assert backward.forward_ops == 1


def test_nothing_may_be_left() -> None:
    with pytest.raises(LeftoverError, match="16384 bytes"):
        blocks_of(replace(RECORDING, backward=BACKWARD[:-1]))
