"""What ``benchmarks.hygra`` plays: communications on a leaf-spine of hosts with one 200 Gb/s NIC
each, links of one rate."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.network.packet.engine import PacketEngine
from trainscout.simulators.predictor.network.packet.settings import PacketSettings
from trainscout.simulators.predictor.network.topology.routing import Routes

RATE = 25e9
MB = 1e6


@dataclass(frozen=True)
class Fabric:
    """``hosts`` on ``leaves``, each leaf joined to every spine."""

    hosts: int = 64
    leaves: int = 8
    spines: int = 8
    delay_s: float = 10e-6

    @property
    def links(self) -> int:
        return 2 * self.hosts + 2 * self.leaves * self.spines

    def routes(self, source: np.ndarray, destination: np.ndarray, spine: np.ndarray) -> Routes:
        per = self.hosts // self.leaves
        first, last = source // per, destination // per
        up = 2 * self.hosts + first * self.spines + spine
        down = 2 * self.hosts + (self.leaves + last) * self.spines + spine
        across = np.stack([source, up, down, self.hosts + destination], axis=1)
        inside = np.stack([source, self.hosts + destination, 0 * up - 1, 0 * up - 1], axis=1)
        links = np.where((first == last)[:, None], inside, across)
        return Routes(links, np.zeros(len(links)))

    def engine(self, kind: type, settings: PacketSettings) -> PacketEngine:
        return kind(np.full(self.links, RATE), self.delay_s, 4, settings)


@dataclass(frozen=True)
class Pattern:
    """Flows of one communication: shares of a size, starts, ties."""

    routes: Routes
    share: np.ndarray | float = 1.0
    start_s: np.ndarray | float = 0.0
    after: np.ndarray | None = None
    lag_s: float = 0.0

    def announce(self, engine: PacketEngine, size: float) -> np.ndarray:
        after = None if self.after is None else self.after + engine.next_flow
        bytes_ = np.ceil(size * self.share)
        return engine.add(self.routes, bytes_, self.start_s, after=after, delay_s=self.lag_s)


def tensor_ring(fabric: Fabric) -> Pattern:
    """Neighbours, each over a spine of its own."""
    hosts = np.arange(fabric.hosts)
    return Pattern(fabric.routes(hosts, (hosts + 1) % fabric.hosts, hosts % fabric.spines))


def data_ring(fabric: Fabric, seed: int = 0) -> Pattern:
    """To the next leaf, over spines hashed at random: some uplinks carry several flows."""
    hosts = np.arange(fabric.hosts)
    there = (hosts + fabric.hosts // fabric.leaves) % fabric.hosts
    spines = np.random.default_rng(seed).integers(0, fabric.spines, fabric.hosts)
    return Pattern(fabric.routes(hosts, there, spines))


def pipeline(fabric: Fabric, stages: int = 4, micro_batches: int = 4, seed: int = 0) -> Pattern:
    """Chains over stages, micro-batch by micro-batch, spines hashed at random."""
    wide = fabric.hosts // stages
    batch, stage, lane = (
        each.ravel()
        for each in np.meshgrid(
            np.arange(micro_batches), np.arange(stages - 1), np.arange(wide), indexing="ij"
        )
    )
    source = stage * wide + lane
    spines = np.random.default_rng(seed).integers(0, fabric.spines, len(source))
    number = np.arange(len(source))
    later = stage > 0
    after = np.stack([number[later], number[later] - wide], axis=1)
    starts = np.where(later, 0.0, batch * 100e-6)
    routes = fabric.routes(source, source + wide, spines)
    return Pattern(routes, 1.0, starts, after, 50e-6)


def mixed(fabric: Fabric, stages: int = 4, micro_batches: int = 4, seed: int = 0) -> Pattern:
    """A training step: of every micro-batch each stage's tensor-parallel rings of 8, its experts'
    exchange between up to 4 such groups and its transfer to the next stage; then the gradients'
    rings between groups. Each begins 50 us after what its host received before; spines of all but
    TP are hashed at random.
    """
    wide = fabric.hosts // stages
    lane, groups = np.arange(wide), min(4, wide // 8)
    block = lane // (8 * groups) * 8 * groups
    ends: list[tuple[np.ndarray, np.ndarray]] = []
    shares: list[float] = []
    ties: list[np.ndarray] = []
    starts: list[float] = []

    def send(there: np.ndarray, stages_: tuple[int, int], share: float, *after: np.ndarray,
             start_s: float = 0.0) -> np.ndarray:  # fmt: skip
        """Numbers of one flow a lane, by the lane it reaches."""
        numbers = np.arange(len(ends) * wide, (len(ends) + 1) * wide)
        ends.append((stages_[0] * wide + lane, stages_[1] * wide + there))
        shares.append(share)
        starts.append(start_s)
        ties.extend(np.stack([numbers, each], axis=1) for each in after)
        arrives = np.empty(wide, dtype=np.int64)
        arrives[there] = numbers
        return arrives

    inside = []
    for batch in range(micro_batches):
        came: list[np.ndarray] = []
        for stage in range(stages):
            own = (stage, stage)
            inside.append(len(ends))
            ring = lane // 8 * 8 + (lane + 1) % 8
            came = [send(ring, own, 1.0, *came, start_s=batch * 100e-6 * (not stage))]
            others = [
                block + (lane - block + 8 * peer) % (8 * groups) for peer in range(1, groups)
            ]
            came = [send(each, own, 1 / len(others), *came) for each in others] or came
            if batch + 1 == micro_batches:
                send((lane + 8) % wide, own, 1.0, *came)
            if stage + 1 < stages:
                came = [send(lane, (stage, stage + 1), 1.0, *came)]
    source, destination = (np.concatenate(each) for each in zip(*ends, strict=True))
    spines = np.random.default_rng(seed).integers(0, fabric.spines, len(source))
    rings = np.isin(np.arange(len(ends)), inside).repeat(wide)
    spines = np.where(rings, source % fabric.spines, spines)
    routes = fabric.routes(source, destination, spines)
    return Pattern(routes, np.repeat(shares, wide), np.repeat(starts, wide),
                   np.concatenate(ties), 50e-6)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """``took_s``: of each flow from its own start; ``job_s`` the last end."""

    took_s: np.ndarray
    job_s: float
    cpu_s: float
    hops: int


def run(engine: PacketEngine, pattern: Pattern, size: float) -> Run:
    begin = time.process_time()
    flows = pattern.announce(engine, size)
    engine.advance()
    cpu_s = time.process_time() - begin
    ends = engine.completion_s(flows)
    return Run(ends - engine.start_s(flows), float(ends.max()), cpu_s, engine.packet_hops)
