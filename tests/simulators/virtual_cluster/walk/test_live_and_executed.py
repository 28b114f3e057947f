"""One walk, two clocks: recorded events take as long live as when the traces are executed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.samples import GPU
from tests.simulators.virtual_cluster.execution.scripts import (
    MIB,
    PAIR,
    TP,
    Script,
    job,
    pipeline,
)
from tests.simulators.virtual_cluster.traces.megatron_like import Layout, megatron_trace
from trainscout.simulators.predictor.collectives.price import price_collective
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.framework import UNDECLARED, Framework
from trainscout.simulators.virtual_cluster.execution.step import replay_ranks, used_part
from trainscout.simulators.virtual_cluster.live.messages import Finish
from trainscout.simulators.virtual_cluster.live.network import WhiteBoxNetwork
from trainscout.simulators.virtual_cluster.live.prices import Prices
from trainscout.simulators.virtual_cluster.live.representation import Representation
from trainscout.simulators.virtual_cluster.live.simulation import Simulation
from trainscout.simulators.virtual_cluster.traces.events import (
    BACKWARD,
    FORWARD,
    Begin,
    Collective,
    End,
    Op,
    Phase,
    PointToPoint,
    Site,
    TensorSpec,
    Trace,
    WorkWait,
)
from trainscout.simulators.virtual_cluster.walk.communicators import communicator_of
from trainscout.simulators.virtual_cluster.walk.host import HostCost
from trainscout.simulators.virtual_cluster.walk.launches import Launches

FRAMEWORK = Framework(name="declared", host_launch_s=6e-6, host_forward_s=2e-6)
# Live times are whole picoseconds, and what each was rounded by adds up.
ROUNDING_S = 1e-9

# Starts and ends by lane, each in order, from the first start on any rank.
Times = dict[int, dict[str, list[tuple[float, float]]]]


def live(
    traces: Sequence[Trace], machine: Cluster = PAIR, framework: Framework = FRAMEWORK
) -> Times:
    cluster = used_part(machine, len(traces))
    simulation = Simulation(
        Representation.by_neighbours(len(traces), range(len(traces))),
        Prices(GPU, cluster, framework),
        WhiteBoxNetwork(),
        HostCost.of(framework, cluster, GPU, cpu=False),
        Launches,
        record=True,
    )
    for trace in traces:
        simulation.feed(trace.header.rank, [*trace.events, Finish()])
    while not simulation.finished:
        simulation.advance()
    times: dict[int, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    assert simulation.slices is not None
    for each in simulation.slices:
        times[each.rank][each.lane].append((each.start_ps * 1e-12, each.end_ps * 1e-12))
    return _from_the_first(times)


def executed(
    traces: Sequence[Trace], machine: Cluster = PAIR, framework: Framework = FRAMEWORK
) -> Times:
    step = replay_ranks(traces, GPU, machine, framework, host="declared")
    times: dict[int, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for rank in step.ranks:
        events = traces[rank.rank].events
        found = rank.times
        for event, *span in zip(events, found.start_s, found.end_s, strict=True):
            if isinstance(event, Op | Collective | PointToPoint):
                times[rank.rank][_lane(rank.rank, event)].append((span[0], span[1]))
    return _from_the_first(times)


def _lane(rank: int, event: Op | Collective | PointToPoint) -> str:
    if isinstance(event, Op):
        return f"stream {event.stream}"
    if isinstance(event, Collective) or event.batch is not None:
        return f"group {event.group}"
    low, high = sorted((rank, event.peer))
    return f"group {event.group} {low}-{high}"


def _from_the_first(times: Mapping[int, Mapping[str, list[tuple[float, float]]]]) -> Times:
    began = min(
        start for lanes in times.values() for spans in lanes.values() for start, _ in spans
    )
    return {
        rank: {
            lane: sorted((start - began, end - began) for start, end in spans)
            for lane, spans in lanes.items()
        }
        for rank, lanes in times.items()
    }


def ring(batch: int | None) -> Callable[[Script], None]:
    def write(script: Script) -> None:
        script.gemm(2048)
        after, before = (script.rank + 1) % 8, (script.rank - 1) % 8
        works = [
            script.transfer("send", TP, after, 16 * MIB, batch),
            script.transfer("recv", TP, before, 16 * MIB, batch),
        ]
        script.gemm(1024)
        for work in works:
            script.work_wait(work)
        # Ranks that differ are executed one by one: none stands for others.
        script.gemm(1024 * (1 + script.rank))
        script.collective(TP, 4 * MIB, wait=False)

    return write


def waits(script: Script) -> None:
    script.gemm(2048)
    script.record(1)
    first = script.collective(TP, 64 * MIB, wait=False)
    script.wait(1, 3)
    script.gemm(1024 * (1 + script.rank), stream=3)
    script.read()
    script.host_work(64 * MIB)
    script.gemm(4096)
    script.work_wait(first, host=True)
    script.gemm(512, stream=3)
    script.synchronise("event", 1)
    script.synchronise("stream", 3)
    script.collective(TP, 0, "barrier")
    script.synchronise()
    script.gemm(1024)


def without_set_up(trace: Trace) -> Trace:
    """Live takes part in what comes before the first step, which is not executed."""
    events = trace.events
    first = next(i for i, each in enumerate(events) if each == Phase(FORWARD, 0))
    kept = [each for each in events[:first] if not isinstance(each, Op | Collective | WorkWait)]
    return Trace(trace.header, (*kept, *events[first:]))


LAYOUT = Layout(tp=2, dp=2, pp=2, micro_batches=4, layers=2)

CASES: dict[str, Callable[[], list[Trace]]] = {
    "pipeline": lambda: [script.trace() for script in pipeline(4, 6)],
    "batched ring": lambda: [script.trace() for script in job(8, ring(1))],
    "ring": lambda: [script.trace() for script in job(8, ring(None))],
    "waits": lambda: [script.trace() for script in job(4, waits)],
    "megatron": lambda: [
        without_set_up(megatron_trace(LAYOUT, rank)) for rank in range(LAYOUT.world_size)
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_recorded_events_take_the_same_time(name: str) -> None:
    traces = CASES[name]()
    found, expected = live(traces), executed(traces)
    for rank, lanes in expected.items():
        assert set(found[rank]) == set(lanes)
        for lane, spans in lanes.items():
            np.testing.assert_allclose(found[rank][lane], spans, rtol=0, atol=ROUNDING_S)


def test_the_host_of_the_framework_whose_code_launches_takes_the_same_time() -> None:
    dtensors = {"host_tp_product_s": 1e-4, "host_unit_s": 2e-4, "torch_wrappers": True}
    told = Framework(name="told", code=("told",), host_launch_s=3e-5, **dtensors)
    asked = replace(UNDECLARED, alternatives=(told,))
    traces = [
        Trace(each.header, (Site(10**6, "/src/told/model.py", 1, "forward"), *each.events))
        for each in CASES["megatron"]()
    ]
    found, expected = live(traces, framework=asked), executed(traces, framework=asked)
    for rank, lanes in expected.items():
        for lane, spans in lanes.items():
            np.testing.assert_allclose(found[rank][lane], spans, rtol=0, atol=ROUNDING_S)
    undeclared = executed(CASES["megatron"](), framework=asked)
    assert expected[0]["stream 0"][-1][1] > 2 * undeclared[0]["stream 0"][-1][1]


def test_a_region_that_a_phase_cuts_is_launched_all_the_same() -> None:
    script = Script(0, 1)
    each = TensorSpec("bfloat16", (MIB,), 1)
    add = Op("aten.add.Tensor", (each, each), (each,), 0)
    script.events += [Begin("fused", ""), add, Phase(BACKWARD, 0), add, End("fused")]
    assert len(live([script.trace()])[0]["stream 0"]) == 2


def test_switches_sum_for_the_groups_that_ask_live_and_executed() -> None:
    # Of four nodes: over two, what switches sum crosses the NICs as often as in a tree.
    everyone, size = tuple(range(16)), 256 * MIB
    sharp = replace(PAIR, num_nodes=4, sharp=True)
    spans = {}
    for asks in (True, False):

        def write(script: Script) -> None:
            script.group("DATA_PARALLEL_GROUP", *everyone, collnet=asks)  # noqa: B023
            script.gemm(1024)
            script.collective("DATA_PARALLEL_GROUP", size)

        traces = [script.trace() for script in job(16, write)]
        ((begin, end),) = executed(traces, sharp)[0]["group DATA_PARALLEL_GROUP"]
        np.testing.assert_allclose(
            live(traces, sharp)[0]["group DATA_PARALLEL_GROUP"], [(begin, end)], atol=ROUNDING_S
        )
        group = communicator_of("dp", everyone, sharp, collnet=asks)
        price = price_collective("all_reduce", size, group, GPU, sharp)
        assert end - begin == pytest.approx(price.seconds)
        spans[asks] = end - begin
    assert spans[True] < spans[False]
