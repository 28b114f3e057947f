"""A flow announced late: the in-order result to the last bit, and what changed is said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.predictor.network.flow.schedules import (
    HOPS,
    MICRO,
    add,
    as_routes,
    in_order,
    schedules,
)
from tests.simulators.predictor.network.flow.twin import PlainFlow
from trainscout.simulators.predictor.network.flow.engine import FlowEngine, Progress
from trainscout.simulators.predictor.network.topology.routing import Routes
from trainscout.simulators.predictor.question.errors import InputError

Schedule = tuple[list[int], list[PlainFlow]]


def one_link(count: int) -> Routes:
    return Routes(np.zeros((count, 1), dtype=np.int64), np.zeros(count))


class Reader:
    """Keeps what the reports said, as a caller would, and checks that they are consistent."""

    def __init__(self) -> None:
        self.stated: dict[int, float] = {}

    def read(self, report: Progress) -> None:
        for flow, time, changed in zip(
            report.flows, report.completion_s, report.changed, strict=True
        ):
            assert changed == (int(flow) in self.stated)
            assert self.stated.get(int(flow)) != time
            if np.isfinite(time):
                self.stated[int(flow)] = float(time)
            else:
                del self.stated[int(flow)]


@given(schedules(max_flows=14), st.data())
def test_any_order_of_announcing_gives_the_in_order_result(
    schedule: Schedule, data: st.DataObject
) -> None:
    capacity, flows = schedule
    count = len(flows)
    expected = in_order(capacity, flows)
    order = data.draw(st.permutations(range(count)))
    engine = FlowEngine(capacity, HOPS)
    reader = Reader()
    number: dict[int, int] = {}
    for place, index in enumerate(order):
        add(engine, flows[index], number, index)
        then = data.draw(st.sampled_from(["nothing", "advance", "forget"]))
        if then != "nothing":
            reader.read(engine.advance(data.draw(st.integers(0, 90)) * 1e-6))
        to_come = [flows[later].start_s for later in order[place + 1 :]]
        if then == "forget" and to_come:
            engine.forget(float(min(to_come)))
    reader.read(engine.advance())
    np.testing.assert_array_equal(
        [reader.stated[number[index]] for index in range(count)], expected
    )


@given(schedules(max_flows=10))
def test_one_announcement_of_all_gives_the_in_order_result(schedule: Schedule) -> None:
    """Also when all of it is late."""
    capacity, flows = schedule
    engine = FlowEngine(capacity, HOPS)
    engine.advance(1e-3)
    engine.add(
        as_routes(flows),
        [flow.size_bytes for flow in flows],
        [float(flow.start_s) for flow in flows],
    )
    engine.advance()
    np.testing.assert_array_equal(
        engine.completion_s(np.arange(len(flows))), in_order(capacity, flows)
    )


@pytest.mark.parametrize("seed", range(8))
def test_forgetting_all_it_may_changes_nothing(seed: int) -> None:
    """Long runs on a coarse grid of times, so that starts, ends and what is forgotten meet."""
    random = np.random.default_rng(seed)
    count, links = 300, 5
    starts = np.sort(random.integers(0, 400, count))
    flows = [
        PlainFlow(
            route=tuple(random.choice(links, random.integers(1, HOPS + 1), replace=False)),
            size_bytes=int(random.integers(1, 8)) * 1000,
            start_s=int(starts[index]) * MICRO,
            latency_s=int(random.integers(0, 3)) * MICRO,
        )
        for index in range(count)
    ]
    capacity = [2 * 10**9] * links
    expected = in_order(capacity, flows)
    heard = starts + random.integers(0, 30, count)
    order = np.argsort(heard, kind="stable").tolist()
    floor = np.minimum.accumulate(starts[order][::-1])[::-1]
    engine = FlowEngine(capacity, HOPS)
    reader = Reader()
    number: dict[int, int] = {}
    for place, index in enumerate(order):
        reader.read(engine.advance(float(heard[index]) * 1e-6))
        engine.forget(float(floor[place]) * 1e-6)
        add(engine, flows[index], number, index)
    reader.read(engine.advance())
    np.testing.assert_array_equal(
        [reader.stated[number[index]] for index in range(count)], expected
    )
    with pytest.raises(InputError, match="forgotten"):
        engine.completion_s([0])


def test_what_does_not_meet_the_late_flow_is_not_played_again() -> None:
    engine = FlowEngine([1.0, 1.0], 1)
    away = Routes(np.full((50, 1), 1), np.zeros(50))
    engine.add(away, np.arange(1.0, 51.0))
    engine.add(one_link(1), 5.0)
    engine.advance()
    solves = engine.solves
    engine.add(one_link(1), 1.0, 2.0)
    report = engine.advance()
    assert report.flows.tolist() == [50, 51]
    assert engine.solves - solves == 3


def test_a_completion_can_be_taken_back() -> None:
    engine = FlowEngine([1.0], 1)
    engine.add(one_link(1), 4.0)
    assert engine.advance(4.0).completion_s.tolist() == [4.0]
    engine.add(one_link(1), 4.0, 2.0)
    report = engine.advance(4.0)
    assert report.completion_s.tolist() == [np.inf]
    assert report.changed.tolist() == [True]
    last = engine.advance()
    assert last.completion_s.tolist() == [6.0, 8.0]
    assert last.changed.tolist() == [False, False]


def test_the_past_that_was_forgotten_is_refused() -> None:
    engine = FlowEngine([1.0], 1)
    engine.add(one_link(1), 1.0)
    engine.advance(10.0)
    engine.forget(5.0)
    with pytest.raises(InputError, match="forgotten"):
        engine.add(one_link(1), 1.0, 4.0)
    engine.add(one_link(1), 1.0, 5.0)
    assert engine.advance().completion_s.tolist() == [6.0]


def test_memory_is_bounded_by_what_can_still_change() -> None:
    """A long run that forgets keeps pieces and slots of its last moments only."""
    engine = FlowEngine([1.0], 1)
    random = np.random.default_rng(5)
    kept = []
    for step in range(400):
        late = random.uniform(0.0, 3.0, 5)
        engine.add(one_link(5), random.uniform(0.05, 0.25, 5), np.maximum(0, step - late))
        engine.advance(float(step))
        engine.forget(max(0.0, step - 2.0))
        kept.append(engine.pieces_kept)
    assert max(kept[200:]) <= 2 * max(kept[:100])
    with pytest.raises(InputError, match="forgotten"):
        engine.completion_s([0])
    assert np.isfinite(engine.completion_s([engine.next_flow - 5])).all()
