"""What calls a host makes, and what they cost it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.samples import GPU
from tests.simulators.jobs import NODE
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.question.framework import UNDECLARED, Framework
from trainscout.simulators.predictor.workload.ir import Gemm
from trainscout.simulators.virtual_cluster.traces.events import (
    BACKWARD,
    FORWARD,
    SETUP,
    Begin,
    Collective,
    End,
    Event,
    Group,
    Op,
    Phase,
    PointToPoint,
    Site,
    Synchronise,
    ValueRead,
)
from trainscout.simulators.virtual_cluster.traces.lowering.tensors import Lowered
from trainscout.simulators.virtual_cluster.traces.rank_walk import Launch
from trainscout.simulators.virtual_cluster.walk.host import HostCalls, HostCost


def transfer(batch: int | None) -> PointToPoint:
    return PointToPoint("send", "g", 1, 0, 8, "float32", 0, 1, batch)


def launches(*events: Event) -> list[list[float]]:
    calls = HostCalls(HostCost(1.0))
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
    calls = HostCalls(HostCost(1.0))
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


PRODUCT = Launch("mm", 0, 1, Lowered((Gemm("mm", 8, 8, 8, "bf16"),), "gemm"))
REDUCE = Collective("reduce_scatter", "d", 0, 8, 8, "float32", 0, 1)


def seconds(calls: HostCalls, launch: Launch) -> float:
    (found,) = calls.take(Op(launch.name, (), (), 0), [launch])
    return found


def test_the_framework_counts_whose_code_launches_from_most_places() -> None:
    told = (
        Framework(name="titan", code=("titan",), host_launch_s=5e-3),
        Framework(name="core", code=("mega/core",), host_launch_s=3e-3),
    )
    cost = HostCost.of(replace(UNDECLARED, alternatives=told), NODE, GPU, cpu=False)
    assert cost.least_launch_s == UNDECLARED.host_launch_s
    calls = HostCalls(cost)
    # Neither a file nor a folder whose name only begins so is its code.
    for file in ("train.py", "/home/titans/train.py", "/src/mega/cores/a.py"):
        calls.learn(Site(0, file, 1, "main"))
    assert seconds(calls, PRODUCT) == UNDECLARED.host_launch_s
    assert "the driver's own" in calls.cost.words("undeclared")
    found = []
    for file in ("titan/a.py", "/src/mega/core/b.py", "/src/mega/core/c.py"):
        calls.learn(Site(0, file, 1, "main"))
        found.append(seconds(calls, PRODUCT))
    assert found == [5e-3, 5e-3, 3e-3]
    words = "host: 3e+03 us a launch, as declared for core, whose code launches"
    assert calls.cost.words("undeclared").startswith(words)
    # Where CPU seconds count nobody's declaration does.
    assert not HostCost.of(replace(UNDECLARED, alternatives=told), NODE, GPU, cpu=True).others


def test_dtensor_and_fsdp_take_the_host_where_a_trace_shows_them() -> None:
    torch = Framework(
        host_launch_s=1.0, host_tp_product_s=10.0, host_unit_s=100.0, torch_wrappers=True
    )
    calls = HostCalls(HostCost.of(torch, NODE, GPU, cpu=False))
    calls.learn(Group("t", "mesh_tp", (0,)))
    calls.learn(Group("d", "mesh_fsdp", (0, 2)))
    calls.learn(Phase(FORWARD, 0))
    assert seconds(calls, PRODUCT) == 1.0
    calls.learn(Group("t", "mesh_tp", (0, 1)))
    assert seconds(calls, PRODUCT) == 11.0
    assert seconds(calls, Launch("add", 0, 2, Lowered((), "elementwise"))) == 2.0
    calls.learn(Begin("fused", "block"))
    assert seconds(calls, PRODUCT) == 1.0
    calls.learn(End("fused"))
    gather = replace(REDUCE, kind="all_gather")
    assert calls.take(gather, ()) == [101.0]
    assert calls.take(replace(gather, group="t"), ()) == [1.0]
    assert calls.take(REDUCE, ()) == [1.0]
    calls.learn(Phase(BACKWARD, 0))
    assert calls.take(gather, ()) == [1.0]
    assert calls.take(REDUCE, ()) == [101.0]
    # Other software hooks modules, of which a trace shows nothing.
    hooks = HostCost.of(replace(torch, torch_wrappers=False), NODE, GPU, cpu=False)
    assert hooks.unit_s == 0


def test_what_autograd_launches_without_python_takes_no_time_of_a_frameworks_python() -> None:
    slow = HostCost.of(Framework(name="slow", host_launch_s=5e-3), NODE, GPU, cpu=False)
    calls = HostCalls(slow)
    calls.learn(Phase(BACKWARD, 0))
    # Traces without places do not tell.
    assert seconds(calls, PRODUCT) == 5e-3
    calls.learn(Site(7, "train.py", 1, "main"))
    eager = load_catalogue().frameworks["torch_eager"].host_launch_s
    assert seconds(calls, PRODUCT) == slow.least_launch_s == eager
    assert seconds(calls, PRODUCT._replace(site=7)) == 5e-3
    calls.learn(Phase(FORWARD, 1))
    assert seconds(calls, PRODUCT) == 5e-3
    driver = HostCalls(HostCost.of(UNDECLARED, NODE, GPU, cpu=False))
    for event in (Phase(BACKWARD, 0), Site(7, "train.py", 1, "main")):
        driver.learn(event)
    assert seconds(driver, PRODUCT) == UNDECLARED.host_launch_s
