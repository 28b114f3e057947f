"""Communication of traced ranks that shares links, with itself and with all that it stands for.

When transfers begin depends on how long those before them took, and that on what else was under
way. So the step is played and its transfers are, by turns: each round plays all of them on one
flow engine from where they began, and the step again with what they took. What is early in a step
is right after few rounds, and later rounds are about what depends on it; a round that moves no end
by more than ``SETTLED`` of the step is the last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trainscout.simulators.predictor.network.topology.network import Network
from trainscout.simulators.predictor.network.topology.routing import Routes
from trainscout.simulators.predictor.replay.engine import Floats, Tasks, Times, run
from trainscout.simulators.virtual_cluster.walk.flow_patterns import FlowPatterns

SETTLED = 1e-3
MOST_ROUNDS = 12


@dataclass(frozen=True)
class Wire:
    """A communication: its task, what NCCL does, how long a few bytes take, and the ranks of every
    one that it stands for, itself included."""

    task: int
    kind: str
    algorithm: str
    latency_s: float
    ends: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class SharedTimes:
    """Times of a step whose transfers share links; ``alone_s``: how long it is if none does;
    ``moved``: how far the last of ``rounds`` moved an end, as a share of the step."""

    times: Times
    alone_s: float
    rounds: int
    moved: float
    flows: int


def run_shared(tasks: Tasks, wires: list[Wire], network: Network) -> SharedTimes:
    """Play a program whose transfers, priced as if alone, share a network's links.

    Raises:
        RuntimeError: when tasks wait for each other and none can start.
        InputError: when failed links or missing tiers leave ranks without a path.
    """
    flowing = _Flows(network)
    alone = times = run(tasks)
    work = tasks.work
    numbers = np.array([wire.task for wire in wires], dtype=np.int64)
    moved, rounds, flows = 1.0, 0, 0
    while wires and moved > SETTLED and rounds < MOST_ROUNDS:
        took_s, flows = _played(flowing, wires, tasks.work[numbers], times.start[numbers])
        work = work.copy()
        work[numbers] = took_s
        before, times = times, run(replace(tasks, work=work))
        moved = float(np.abs(times.end - before.end).max() / times.end.max())
        rounds += 1
    return SharedTimes(times, float(alone.end.max()), rounds, moved, flows)


class _Flows:
    """The flows of each communication and of all that it stands for, as one announcement."""

    def __init__(self, network: Network) -> None:
        self.patterns = FlowPatterns(network)
        self._known: dict[tuple[str, str, tuple[tuple[int, ...], ...]], tuple[Routes, Floats]] = {}

    def of(self, wire: Wire) -> tuple[Routes, Floats]:
        """Routes, and the bytes of each for a second alone."""
        key = (wire.kind, wire.algorithm, wire.ends)
        if key not in self._known:
            made = [self.patterns.of(wire.kind, wire.algorithm, ranks) for ranks in wire.ends]
            routes = Routes(
                np.concatenate([each.routes.links for each in made]),
                np.concatenate([each.routes.latency_s for each in made]),
            )
            a_second = np.concatenate([each.shares / each.alone_s for each in made])
            self._known[key] = routes, a_second
        return self._known[key]


def _played(
    flows: _Flows, wires: list[Wire], price_s: Floats, start_s: Floats
) -> tuple[Floats, int]:
    """How long each transfer takes when all begin at these times, and how many flows they are."""
    engine = flows.patterns.new_engine()
    first = [0]
    for wire, price, start in zip(wires, price_s, start_s, strict=True):
        stream_s = price - wire.latency_s
        if stream_s > 0:
            routes, a_second = flows.of(wire)
            engine.add(routes, stream_s * a_second, start + wire.latency_s)
        first.append(engine.next_flow)
    took_s = price_s.copy()
    bounds = np.array(first)
    played = np.flatnonzero(np.diff(bounds))
    if len(played):
        engine.advance()
        last_s = np.maximum.reduceat(
            engine.completion_s(np.arange(bounds[-1])), bounds[:-1][played]
        )
        # Rounding of the engine's clock makes nothing faster than its price.
        took_s[played] = np.maximum(price_s[played], last_s - start_s[played])
    return took_s, int(bounds[-1])
