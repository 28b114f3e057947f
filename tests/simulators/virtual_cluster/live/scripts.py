"""Ranks without processes: their events as lists, played in any interleaving."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trainscout.simulators.virtual_cluster.live.messages import Finish, Message
from trainscout.simulators.virtual_cluster.live.network import Network, WhiteBoxNetwork
from trainscout.simulators.virtual_cluster.live.prices import Prices
from trainscout.simulators.virtual_cluster.live.representation import Representation
from trainscout.simulators.virtual_cluster.live.simulation import Release, Simulation
from trainscout.simulators.virtual_cluster.traces import events
from trainscout.simulators.virtual_cluster.traces.rank_walk import Launch
from trainscout.simulators.virtual_cluster.walk.host import HostCost
from trainscout.simulators.virtual_cluster.walk.launches import Launches
from trainscout.simulators.virtual_cluster.walk.prices import Price
from trainscout.simulators.virtual_cluster.walk.rendezvous import Call

LAUNCH_S = 1e-6
LATENCY_S = 1e-6
BYTES_PER_S = 1e9
COPY = "copy to the host"


class ScriptedPrices(Prices):
    """An operation's first argument is its seconds; transfers take a latency and 1 GB/s."""

    def __init__(
        self, on_kernel: float = 1.0, on_transfer: float = 1.0, of_two: float = 1.0
    ) -> None:
        self._factors = (on_kernel, on_transfer)
        self.slowdown_of_two = of_two
        self._kernels: dict[tuple[str, float], Price] = {}

    def kernel(self, content: object) -> Price:
        assert isinstance(content, tuple)
        mix = b"" if content[0] == COPY else b"any"
        return self._kernels.setdefault(content, Price(content[1], mix=mix))

    def communication(
        self,
        call: Call,
        group: tuple[int, ...],
        ends: tuple[int, int] | None = None,
        *,
        collnet: bool = False,
    ) -> Price:
        return Price(LATENCY_S + call.bytes / BYTES_PER_S, LATENCY_S)

    def slowdowns(self, kernel: Price, communication: Price) -> tuple[float, float]:
        return self._factors


class ScriptedLaunches(Launches):
    """Every operation is one launch of what its first argument says."""

    def take(self, event: events.Event) -> tuple[Launch, ...]:
        if not isinstance(event, events.Op):
            return ()
        return (Launch(event.name, event.stream, 1, (event.name, event.inputs[0])),)


def copy(seconds: float, stream: int = 0) -> events.Op:
    return events.Op(COPY, (seconds,), (), stream)


def kernel(seconds: float, stream: int = 0) -> events.Op:
    return events.Op("kernel", (seconds,), (), stream)


def gap(seconds: float) -> events.HostGap:
    return events.HostGap(seconds)


def group(*ranks: int, name: str = "", description: str = "") -> events.Group:
    return events.Group(name or "-".join(map(str, ranks)), description, ranks)


def collective(
    name: str, sequence: int, size: int, kind: str = "all_reduce", stream: int = 0, work: int = -1
) -> events.Collective:
    number = work if work >= 0 else 1000 + sequence
    return events.Collective(kind, name, sequence, size, size, "float32", stream, number)


def send(name: str, peer: int, sequence: int, size: int, **given: int) -> events.PointToPoint:
    return _transfer("send", name, peer, sequence, size, given)


def receive(name: str, peer: int, sequence: int, size: int, **given: int) -> events.PointToPoint:
    return _transfer("recv", name, peer, sequence, size, given)


def _transfer(
    kind: str, name: str, peer: int, sequence: int, size: int, given: dict[str, int]
) -> events.PointToPoint:
    stream, work, batch = given.get("stream", 0), given["work"], given.get("batch")
    return events.PointToPoint(kind, name, peer, sequence, size, "float32", stream, work, batch)


Chooser = Callable[[Sequence[int]], tuple[int, int]]


def in_turn(ranks: Sequence[int]) -> tuple[int, int]:
    """Feed the first rank that has something to send, one event."""
    return ranks[0], 1


def play(
    scripts: Mapping[int, Sequence[Message]],
    *,
    prices: ScriptedPrices | None = None,
    network: Network | None = None,
    representation: Representation | None = None,
    launch_s: float = LAUNCH_S,
    choose: Chooser = in_turn,
    after: Callable[[Simulation], None] | None = None,
) -> tuple[Simulation, list[Release]]:
    """Play scripts to their end.

    As processes do, a rank sends nothing while it waits; ``choose`` picks which of the others is
    next, and how many of its events come at once. In between all is played that can be.
    """
    who = representation or Representation.by_neighbours(len(scripts), list(scripts))
    simulation = Simulation(
        who,
        prices or ScriptedPrices(),
        network or WhiteBoxNetwork(),
        HostCost(launch_s),
        ScriptedLaunches,
        record=True,
    )
    left = {rank: [*script, Finish()] for rank, script in scripts.items()}
    releases: list[Release] = []
    while True:
        sending = [rank for rank in left if left[rank] and simulation.hosts[rank].wait is None]
        if sending:
            rank, count = choose(sending)
            messages, left[rank] = left[rank][:count], left[rank][count:]
            simulation.feed(rank, messages)
        new = simulation.advance()
        releases += new
        if after is not None:
            after(simulation)
        if not sending and not new:
            return simulation, releases
