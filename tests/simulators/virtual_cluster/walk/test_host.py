"""What calls a host makes, and what they cost it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.samples import GPU
from tests.simulators.jobs import NODE
from trainscout.simulators.predictor.question.framework import UNDECLARED, Framework
from trainscout.simulators.virtual_cluster.traces.events import (
    FORWARD,
    SETUP,
    Collective,
    Event,
    Op,
    Phase,
    PointToPoint,
    Synchronise,
    ValueRead,
)
from trainscout.simulators.virtual_cluster.traces.rank_walk import Launch
from trainscout.simulators.virtual_cluster.walk.launches import HostCalls, HostCost


def transfer(batch: int | None) -> PointToPoint:
    return PointToPoint("send", "g", 1, 0, 8, "float32", 0, 1, batch)


def launches(*events: Event) -> list[list[int]]:
    calls = HostCalls()
    return [calls.take(event, ()) for event in events]


def test_a_batch_is_one_call() -> None:
    batched = [transfer(1), transfer(1), transfer(2), transfer(None), transfer(None), transfer(2)]
    assert launches(*batched) == [[1], [], [1], [1], [1], [1]]
    # Whatever comes between its members.
    assert launches(transfer(1), Synchronise("device"), transfer(1)) == [[1], [], []]


def test_communication_and_reads_launch_once_and_operations_what_they_are() -> None:
    reduce = Collective("all_reduce", "g", 0, 8, 8, "float32", 0, 1)
    read = ValueRead("item", 1.0, "exact", 0)
    assert launches(reduce, read, Synchronise("device")) == [[1], [1], []]
    calls = HostCalls()
    assert calls.phase == SETUP
    assert calls.take(Phase(FORWARD, 0), ()) == []
    assert calls.phase == FORWARD
    op = Op("aten.mm.default", (), (), 0)
    assert calls.take(op, [Launch("mm", 0, 3, None), Launch("add", 0, 1, None)]) == [3, 1]
    # What a fused region had to launch before it.
    assert calls.take(reduce, [Launch("add", 0, 1, None)]) == [1, 1]


def test_declared_times_are_not_added_to_cpu_seconds() -> None:
    slow = Framework(name="slow", host_launch_s=5e-3, host_forward_s=3.4e-3)
    traced = HostCost.of(slow, NODE, GPU, cpu=True)
    assert (traced.launch_s, traced.forward_s) == (UNDECLARED.host_launch_s, 0.0)
    assert traced.gap_factor == 1.0
    # An operation of a module is 34 / 15 launches of a trace.
    declared = HostCost.of(slow, NODE, GPU, cpu=False)
    assert (declared.launch_s, declared.gap_factor) == (5e-3, 0.0)
    assert declared.forward_s == pytest.approx(1.5e-3)
    # An Arm CPU takes longer for what is declared.
    arm = replace(NODE, cpu="arm")
    assert HostCost.of(slow, arm, GPU, cpu=True) == HostCost.of(slow, NODE, GPU, cpu=True)
    slower = HostCost.of(slow, arm, GPU, cpu=False)
    assert slower.launch_s == pytest.approx(2.6 * declared.launch_s)
    assert slower.forward_s == pytest.approx(2.6 * declared.forward_s)
