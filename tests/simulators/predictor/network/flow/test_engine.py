from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.predictor.network.flow.schedules import HOPS, MICRO, add, in_order, schedules
from tests.simulators.predictor.network.flow.twin import PlainFlow, arrivals
from trainscout.simulators.predictor.network.flow import engine as engine_module
from trainscout.simulators.predictor.network.flow.engine import FlowEngine
from trainscout.simulators.predictor.network.flow.engine_arrays import FEMTOSECONDS
from trainscout.simulators.predictor.network.topology.routing import Routes
from trainscout.simulators.predictor.question.errors import InputError

Schedule = tuple[list[int], list[PlainFlow]]


def straight(*links: int, latency_s: float = 0.0) -> Routes:
    return Routes(np.array([links]), np.array([latency_s]))


def on_one_link(count: int) -> Routes:
    return Routes(np.zeros((count, 1), dtype=np.int64), np.zeros(count))


def test_n_flows_on_a_link_take_n_times_as_long() -> None:
    engine = FlowEngine([50e9], 1)
    engine.add(on_one_link(7), 16e6)
    report = engine.advance()
    np.testing.assert_allclose(report.completion_s, 7 * 16e6 / 50e9, rtol=1e-12)
    assert engine.solves == 2


def test_a_flow_arrives_one_latency_after_it_was_sent() -> None:
    engine = FlowEngine([50e9], 1)
    flow = engine.add(straight(0, latency_s=3e-6), 16e6, 1e-3)
    engine.advance()
    np.testing.assert_allclose(engine.completion_s(flow), 1e-3 + 16e6 / 50e9 + 3e-6, rtol=1e-12)


def test_shortest_first_under_fair_sharing() -> None:
    # Sizes 1, 2, 3 at rate 6: the k-th ends when all have sent its size, or their own.
    engine = FlowEngine([6.0], 1)
    engine.add(on_one_link(3), [1.0, 2.0, 3.0])
    np.testing.assert_allclose(engine.advance().completion_s, [3 / 6, 5 / 6, 1.0], rtol=1e-12)


@given(schedules())
def test_arrivals_are_those_of_the_exact_twin(schedule: Schedule) -> None:
    capacity, flows = schedule
    expected = [float(time) for time in arrivals(flows, capacity)]
    # Every event is rounded to a femtosecond, and passes that on to those after it.
    np.testing.assert_allclose(in_order(capacity, flows), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("seed", range(3))
def test_many_flows_arrive_when_the_exact_twin_says(seed: int) -> None:
    """More than fit into a random schedule: the event queue takes other ways when it is long."""
    random = np.random.default_rng(seed)
    flows = [
        PlainFlow(
            route=tuple(random.choice(5, random.integers(1, HOPS + 1), replace=False).tolist()),
            size_bytes=int(random.integers(1, 8)) * 1000,
            start_s=int(random.integers(0, 60)) * MICRO,
        )
        for _ in range(60)
    ]
    expected = [float(time) for time in arrivals(flows, [2 * 10**9] * 5)]
    np.testing.assert_allclose(in_order([2 * 10**9] * 5, flows), expected, rtol=0, atol=1e-13)


def history(engine: FlowEngine, flow: int) -> tuple[np.ndarray, np.ndarray]:
    """When the rate of a flow that has drained changed, and what it was from then on."""
    (slot,) = engine._slots([flow])
    past, piece = engine._history, engine._flows.segment[slot]
    times, rates = [engine._flows.drained[slot]], [0.0]
    while piece >= 0:
        times.append(past.time[piece])
        rates.append(past.rate[piece])
        piece = past.before[piece]
    return np.array(times[::-1]) / FEMTOSECONDS, np.array(rates[::-1])


@given(schedules())
def test_bytes_are_conserved_and_links_not_exceeded(schedule: Schedule) -> None:
    capacity, flows = schedule
    engine = FlowEngine(capacity, HOPS)
    number: dict[int, int] = {}
    for index, flow in enumerate(flows):
        add(engine, flow, number, index)
    engine.advance()
    histories = [history(engine, number[index]) for index in range(len(flows))]
    for flow, (times, rates) in zip(flows, histories, strict=True):
        sent = float((np.diff(times) * rates[:-1]).sum())
        assert sent == pytest.approx(flow.size_bytes, abs=0.01)
        # No sooner than at the full rate of its slowest link.
        fastest = min(capacity[link] for link in flow.route)
        assert times[0] >= float(flow.start_s) - 1e-15
        assert times[-1] - times[0] >= flow.size_bytes / fastest - 2e-15
    for moment in {float(time) for times, _ in histories for time in times}:
        used = np.zeros(len(capacity))
        for flow, (times, rates) in zip(flows, histories, strict=True):
            piece = np.searchsorted(times, moment, side="right") - 1
            if piece >= 0:
                used[list(flow.route)] += rates[piece]
        assert (used <= np.array(capacity) * (1 + 1e-12)).all()


@given(schedules(), st.integers(2, 5))
def test_links_k_times_as_fast_serve_k_times_the_bytes(schedule: Schedule, times: int) -> None:
    capacity, flows = schedule
    larger = [
        PlainFlow(flow.route, times * flow.size_bytes, flow.start_s, flow.latency_s)
        for flow in flows
    ]
    np.testing.assert_allclose(
        in_order([times * rate for rate in capacity], larger),
        in_order(capacity, flows),
        rtol=0,
        atol=1e-13,
    )


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30)), min_size=2, max_size=15),
)
def test_on_one_link_another_flow_speeds_nobody_up(flows: list[tuple[int, int]]) -> None:
    sizes, starts = (np.array(column, dtype=float) for column in zip(*flows, strict=True))
    ends = []
    for count in (len(flows), len(flows) - 1):
        engine = FlowEngine([1.0], 1)
        engine.add(on_one_link(count), sizes[:count], starts[:count])
        engine.advance()
        ends.append(engine.completion_s(np.arange(len(flows) - 1)))
    assert (ends[0] >= ends[1] - 1e-13).all()


def test_reports_name_each_flow_once() -> None:
    engine = FlowEngine([1.0], 1)
    engine.add(on_one_link(2), [1.0, 5.0])
    assert engine.advance(1.0).flows.tolist() == []
    assert engine.advance(2.0).flows.tolist() == [0]
    last = engine.advance()
    assert (last.flows.tolist(), last.changed.tolist(), last.now_s) == ([1], [False], 6.0)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"size_bytes": 0.0}, "flow.size_bytes"),
        ({"size_bytes": float("nan")}, "flow.size_bytes"),
        ({"size_bytes": 1.0, "start_s": -1.0}, "flow.start_s"),
        ({"size_bytes": 1.0, "start_s": 1e5}, "flow.start_s"),
    ],
)
def test_flows_that_cannot_be_are_refused(arguments: dict[str, object], field: str) -> None:
    engine = FlowEngine([1.0], 1)
    with pytest.raises(InputError) as refusal:
        engine.add(on_one_link(1), **arguments)  # type: ignore[arg-type]
    assert refusal.value.field == field
    assert engine.advance().flows.tolist() == []


def test_unknown_flows_are_refused() -> None:
    engine = FlowEngine([1.0], 1)
    with pytest.raises(InputError, match="never added"):
        engine.completion_s([0])


def test_a_flow_beyond_the_clock_is_refused() -> None:
    engine = FlowEngine([1.0], 1)
    engine.add(on_one_link(1), 1e6)
    with pytest.raises(InputError, match="would not end"):
        engine.advance()


def test_the_documented_example_runs() -> None:
    assert doctest.testmod(engine_module).failed == 0
