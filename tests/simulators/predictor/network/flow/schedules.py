"""Random links, routes and schedules of flows, as hypothesis strategies."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from tests.simulators.predictor.network.flow.twin import PlainFlow
from trainscout.simulators.predictor.network.flow.engine import FlowEngine
from trainscout.simulators.predictor.network.topology.routing import Routes

HOPS = 3
MICRO = Fraction(1, 1_000_000)

capacities = st.lists(st.integers(1, 9).map(lambda rate: rate * 10**9), min_size=1, max_size=7)


@st.composite
def routes(draw: st.DrawFn, links: int) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(0, links - 1), min_size=1, max_size=HOPS, unique=True)))


@st.composite
def schedules(draw: st.DrawFn, max_flows: int = 12) -> tuple[list[int], list[PlainFlow]]:
    """Rates of links in bytes/s, and flows."""
    capacity = draw(capacities)
    flows = [
        PlainFlow(
            route=draw(routes(len(capacity))),
            size_bytes=draw(st.integers(1, 40)) * 1000,
            start_s=draw(st.integers(0, 40)) * MICRO,
            latency_s=draw(st.integers(0, 2)) * MICRO,
        )
        for _ in range(draw(st.integers(1, max_flows)))
    ]
    return capacity, flows


def as_routes(flows: list[PlainFlow]) -> Routes:
    links = np.full((len(flows), HOPS), -1, dtype=np.int64)
    for row, flow in enumerate(flows):
        links[row, : len(flow.route)] = flow.route
    return Routes(links, np.array([float(flow.latency_s) for flow in flows]))


def add(engine: FlowEngine, flow: PlainFlow, number: dict[int, int], index: int) -> None:
    """Announce one flow; ``number`` maps indices of a schedule to the engine's numbers."""
    (number[index],) = engine.add(as_routes([flow]), flow.size_bytes, float(flow.start_s))


def in_order(capacity: list[int], flows: list[PlainFlow]) -> np.ndarray:
    """Arrivals when everything is known before the first event."""
    engine = FlowEngine(capacity, HOPS)
    number: dict[int, int] = {}
    for index, flow in enumerate(flows):
        add(engine, flow, number, index)
    engine.advance()
    return engine.completion_s([number[index] for index in range(len(flows))])
