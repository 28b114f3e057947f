"""Whether queues should be restored after a skip: ``python -m benchmarks.queue_restoration``.

HyGra throws packets away while it is fluid and restores queues when packets go on, by a learned
predictor. Here packets stand still meanwhile. To see what restoring could gain, queues are set to
what each predictor says, packet by packet, whenever a component goes on; ``oracle`` is what they
are at that moment when every packet is played. Components of one announcement are played
without memory, so that all of them are skipped and restored.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.network_engines import (
    LOW,
    MB,
    RATE,
    Fabric,
    Pattern,
    Run,
    data_ring,
    everybody,
    pipeline,
    run,
    tensor_ring,
)
from trainscout.simulators.predictor.network.hybrid import HybridEngine, HybridSettings
from trainscout.simulators.predictor.network.hybrid.parking import Parked
from trainscout.simulators.predictor.network.packet import PacketEngine, PacketSettings
from trainscout.simulators.predictor.network.packet import engine_arrays as t

PATTERNS = {
    "TP ring": tensor_ring,
    "DP ring, ECMP collisions": data_ring,
    "all-to-all in groups of 16": everybody,
    "PP, 4 stages, 4 micro-batches": pipeline,
}
MODES = {
    "window": PacketSettings(),
    "DCQCN, low thresholds": PacketSettings(congestion="dcqcn", dcqcn=LOW, window=2),
}


@dataclass(frozen=True, eq=False)
class Resumed:
    """A component that goes on ``skipped_s`` after it stood still: of each of its ports the
    queue's ``history``, shape (ports, samples), bytes ``carried`` a second and ``flows`` over it;
    ``window_queue`` bytes that windows of its flows hold beyond what is on its way."""

    history: np.ndarray
    carried: np.ndarray
    flows: np.ndarray
    window_queue: np.ndarray
    skipped_s: float


Predictor = Callable[[Resumed], np.ndarray]


def zero(of: Resumed) -> np.ndarray:
    """What is left where packets are thrown away and nothing is restored."""
    return np.zeros(len(of.history))


def mean(of: Resumed) -> np.ndarray:
    return of.history.mean(axis=1)


def trend(of: Resumed) -> np.ndarray:
    """A fluid queue: it goes on growing as inflow beyond the link's rate has made it grow, within
    what windows can hold there."""
    half = of.history.shape[1] // 2
    newer, older = of.history[:, -half:].mean(axis=1), of.history[:, :half].mean(axis=1)
    grows = (newer - older) / (half * HybridSettings().sample_s)
    return np.clip(of.history[:, -1] + grows * of.skipped_s, 0.0, of.window_queue)


def fluid(of: Resumed) -> np.ndarray:
    """The fixed point of windows: what they hold beyond what is on its way waits at the link that
    is fullest, and nothing waits elsewhere."""
    return np.where(of.carried >= 0.95 * RATE, of.window_queue, 0.0)


def features(of: Resumed) -> np.ndarray:
    horizon = np.full(len(of.history), of.skipped_s * 1e3)
    rest = np.stack([of.carried / RATE, of.flows, of.window_queue / MB, horizon], axis=1)
    return np.concatenate([of.history / MB, rest], axis=1)


def learned(settings: PacketSettings, seeds: int) -> Predictor:
    """Boosted trees over history, inflow, flows, what windows hold and the horizon, of components
    that were skipped: rings hashed by other seeds, and exchanges in other groups."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    seen: list[tuple[np.ndarray, np.ndarray]] = []
    fabric = Fabric()
    for seed in range(1, seeds + 1):
        for pattern in (data_ring(fabric, seed), everybody(fabric, 4 + 4 * (seed % 2))):
            for size in (4, 8, 16, 24):
                seen += restored(fabric, settings, pattern, size * MB, mean)[1].seen
    inputs, targets = (np.concatenate(each) for each in zip(*seen, strict=True))
    model = HistGradientBoostingRegressor(loss="absolute_error", random_state=0)
    model.fit(inputs, targets / MB)
    return lambda of: np.maximum(model.predict(features(of)), 0.0) * MB


class RestoringEngine(HybridEngine):
    """A hybrid engine that sets queues to what a predictor says before a component goes on.

    ``truth``: an engine of the same flows that plays every packet; ``predictor`` None is the
    oracle, which sets them to ``truth``'s.
    """

    truth: PacketEngine | None = None
    predictor: Predictor | None = None
    moved = 0
    misses: list[float]
    seen: list[tuple[np.ndarray, np.ndarray]]
    history: np.ndarray

    def _stand_still(
        self, links: np.ndarray, own: np.ndarray, speed: np.ndarray, now: int, until: int
    ) -> None:
        super()._stand_still(links, own, speed, now, until)
        width = self.hybrid.samples + 1
        self.history[links] = self._depths[links][:, (self._sampled + np.arange(width)) % width]

    def _go_on(self, parked: Parked, now: int) -> None:
        super()._go_on(parked, now)
        assert self.truth is not None
        self.truth.advance(now / t.PICOSECONDS)
        true = self.truth.queued_bytes()[parked.ports].astype(float)
        resumed = self._resumed(parked, now)
        self.seen.append((features(resumed), true))
        wanted = true if self.predictor is None else self.predictor(resumed)
        self.misses += np.abs(wanted - true)[true + wanted > 0].tolist()
        for port, depth in zip(parked.ports.tolist(), wanted.tolist(), strict=True):
            self._set_queue(port, depth, parked, now)

    def _resumed(self, parked: Parked, now: int) -> Resumed:
        flows, own = self._flows, parked.flows
        carried, count, held = (np.zeros(len(self._rates)) for _ in range(3))
        for flow, speed in zip(own.tolist(), parked.speed.tolist(), strict=True):
            path = self._paths[flow, : flows[flow, t.HOPS]]
            carried[path] += speed * t.PICOSECONDS
            count[path] += 1
        came_by: dict[int, set[int]] = defaultdict(set)
        for flow, speed in zip(own.tolist(), parked.speed.tolist(), strict=True):
            path = self._paths[flow, : flows[flow, t.HOPS]]
            # Where its own NIC is as full as any link, it waits at its host.
            fullest = int(np.argmax(carried[path] * (1 - 1e-3 * (np.arange(len(path)) > 0))))
            if fullest:
                behind = max(flows[flow, t.WINDOW] - speed * flows[flow, t.BASE_RTT], 0.0)
                held[path[fullest]] += behind
                came_by[path[fullest]].add(path[fullest - 1])
        pause = self.settings.pause_bytes or self.settings.queue_bytes
        for port, links in came_by.items():
            held[port] = min(held[port], pause * len(links))
        ports = parked.ports
        skipped_s = (now - parked.since) / t.PICOSECONDS
        history = self.history[ports]
        return Resumed(history, carried[ports], count[ports], held[ports], skipped_s)

    def _set_queue(self, port: int, depth: float, parked: Parked, now: int) -> None:
        """Add packets to a queue's end or take some away, until it is as deep to a packet."""
        packet_bytes = self.settings.packet_bytes
        missing = round((depth - self._ports[port, t.QUEUE_BYTES]) / packet_bytes)
        if missing < 0:
            self._take_away(port, -missing, now)
        crossing = [
            flow
            for flow in parked.flows.tolist()
            if port in self._paths[flow, 1 : self._flows[flow, t.HOPS]]
        ]
        while missing > 0 and crossing:
            for flow in list(crossing):
                left = self._flows[flow, t.SIZE] - self._flows[flow, t.SENT]
                if missing <= 0 or left <= 4 * packet_bytes:
                    crossing.remove(flow)
                    continue
                self._append(port, flow, now)
                missing -= 1

    def _append(self, port: int, flow: int, now: int) -> None:
        if self._count[t.FREE_PACKET] == t.NONE:
            self._grow_packets()
        ports, flows, packets, size = self._ports, self._flows, self._packets, 4096
        packet = int(self._count[t.FREE_PACKET])
        self._count[t.FREE_PACKET] = packets[packet, t.LINK_NEXT]
        self._count[t.PACKETS_OUT] += 1
        hop = int(np.flatnonzero(self._paths[flow] == port)[0])
        came_by = self._paths[flow, hop - 1]
        packets[packet, [t.FLOW, t.HOP, t.BYTES, t.MARKED]] = flow, hop, size, 0
        packets[packet, [t.CAME_BY, t.LEFT_AT, t.LINK_NEXT]] = came_by, now, t.NONE
        if ports[port, t.QUEUE_HEAD] == t.NONE:
            ports[port, t.QUEUE_HEAD] = packet
        else:
            packets[ports[port, t.QUEUE_TAIL], t.LINK_NEXT] = packet
        ports[port, t.QUEUE_TAIL] = packet
        ports[port, t.QUEUE_BYTES] += size
        ports[came_by, t.INGRESS] += size
        flows[flow, [t.SENT, t.OPEN]] += size
        self.moved += 1
        self._transmit_soon(port, now)

    def _transmit_soon(self, port: int, now: int) -> None:
        ports = self._ports
        if ports[port, t.TX] == 0 and ports[port, t.PAUSED] == 0:
            ports[port, t.TX] = 1
            due = max(now, int(ports[port, t.FREE_AT]))
            self._put_events(np.array([[due, (t.TX_EVENT << t.KIND_SHIFT) + port]]))

    def _take_away(self, port: int, count: int, now: int) -> None:
        ports, flows, packets = self._ports, self._flows, self._packets
        waiting = []
        packet = int(ports[port, t.QUEUE_HEAD])
        while packet != t.NONE:
            waiting.append(packet)
            packet = int(packets[packet, t.LINK_NEXT])
        kept: list[int] = []
        taken = 0
        # Of a link that was asked to pause one stays, which lets it go on.
        first_of: set[int] = set()
        keep = []
        for packet in waiting:
            link = int(packets[packet, t.CAME_BY])
            keep.append(ports[link, t.ASKED] == 1 and link not in first_of)
            first_of.add(link)
        for packet, stays in zip(reversed(waiting), reversed(keep), strict=True):
            if stays or taken == count:
                kept.append(packet)
                continue
            taken += 1
            flow, size = packets[packet, t.FLOW], packets[packet, t.BYTES]
            flows[flow, [t.SENT, t.OPEN]] -= size
            ports[packets[packet, t.CAME_BY], t.INGRESS] -= size
            ports[port, t.QUEUE_BYTES] -= size
            packets[packet, t.LINK_NEXT] = self._count[t.FREE_PACKET]
            self._count[t.FREE_PACKET] = packet
            self._count[t.PACKETS_OUT] -= 1
            self._transmit_soon(int(flows[flow, t.FIRST]), now)
        kept.reverse()
        self.moved += taken
        ports[port, t.QUEUE_HEAD] = kept[0] if kept else t.NONE
        ports[port, t.QUEUE_TAIL] = kept[-1] if kept else t.NONE
        for here, after in zip(kept, [*kept, t.NONE][1:], strict=True):
            packets[here, t.LINK_NEXT] = after


def restored(
    fabric: Fabric, settings: PacketSettings, pattern: Pattern, size: float, by: Predictor | None
) -> tuple[Run, RestoringEngine]:
    engine = fabric.engine(RestoringEngine, settings, HybridSettings(memory=False))
    assert isinstance(engine, RestoringEngine)
    engine.predictor, engine.misses, engine.seen = by, [], []
    engine.history = engine._depths.astype(float)
    engine.truth = fabric.engine(PacketEngine, settings)
    pattern.announce(engine.truth, size)
    return run(engine, pattern, size), engine


def study(hosts: list[int], names: list[str], size: float, seeds: int) -> Table:
    table = Table(
        "hosts", "control", "pattern", "queues", "packets moved", "depth error, KB",
        "FCT error mean / max", "job", title=f"Queues after a skip, {size:.0f} MB a flow",
    )  # fmt: skip
    candidates: dict[str, Predictor | None] = {
        "zero": zero, "mean": mean, "fluid, windows": fluid, "fluid, trend": trend, "oracle": None,
    }  # fmt: skip
    trained = {mode: learned(settings, seeds) for mode, settings in MODES.items()}
    for count in hosts:
        fabric = Fabric(count, 8, 8) if count == 64 else Fabric(count, count // 16, 16)
        for mode, settings in MODES.items():
            for name in names:
                pattern = PATTERNS[name](fabric)
                truth = run(fabric.engine(PacketEngine, settings), pattern, size * MB)
                plain = HybridSettings(memory=False)
                frozen = run(fabric.engine(HybridEngine, settings, plain), pattern, size * MB)
                table.add_row(f"{count}", mode, name, "frozen", "0", "", *_errors(frozen, truth))
                for label, by in {**candidates, "learned": trained[mode]}.items():
                    found, engine = restored(fabric, settings, pattern, size * MB, by)
                    miss = f"{np.mean(engine.misses) / 1e3:.0f}" if engine.misses else ""
                    cells = _errors(found, truth)
                    table.add_row("", "", "", label, f"{engine.moved:,}", miss, *cells)
    return table


def _errors(found: Run, truth: Run) -> tuple[str, str]:
    error = np.abs(found.took_s / truth.took_s - 1)
    return f"{error.mean():.2%} / {error.max():.2%}", f"{found.job_s / truth.job_s - 1:+.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--patterns", nargs="+", default=list(PATTERNS), choices=list(PATTERNS))
    parser.add_argument("--size", type=float, default=16, help="MB a flow")
    parser.add_argument("--seeds", type=int, default=4, help="of traffic to learn from")
    arguments = parser.parse_args()
    Console(width=140).print(
        study(arguments.hosts, arguments.patterns, arguments.size, arguments.seeds)
    )


if __name__ == "__main__":
    main()
