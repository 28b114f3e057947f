"""Packets against the hybrid engine where chance marks them.

    python -m benchmarks.network_engines

Patterns without marks are those of ``benchmarks.hygra``, which plays the ones that are made here.

CPU seconds of one thread, compiled code loaded before; ratios of both sides on the same machine,
one after the other. A leaf-spine of hosts with one 200 Gb/s NIC each, links of one rate; errors
are those of completion times against every packet played.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from trainscout.simulators.predictor.network.hybrid.engine import HybridEngine
from trainscout.simulators.predictor.network.packet.engine import PacketEngine
from trainscout.simulators.predictor.network.packet.settings import Dcqcn, PacketSettings
from trainscout.simulators.predictor.network.topology.routing import Routes

RATE = 25e9
MB = 1e6
# Marks from a quarter of a megabyte on: the recovery of rates is what takes time then.
LOW = Dcqcn(mark_from_bytes=50e3, mark_all_bytes=200e3)


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


def everybody(fabric: Fabric, group: int = 16) -> Pattern:
    """All-to-all in groups; the size is what a host sends."""
    source, destination = (
        each.ravel() for each in np.meshgrid(np.arange(group), np.arange(group), indexing="ij")
    )
    other = source != destination
    base = np.arange(0, fabric.hosts, group)[:, None]
    source, destination = (base + source[other]).ravel(), (base + destination[other]).ravel()
    spines = (source + destination) % fabric.spines
    return Pattern(fabric.routes(source, destination, spines), 1 / (group - 1))


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


def marked(sizes: list[float], seeds: int) -> Table:
    table = Table(
        "pattern", "MB", "hybrid", "noise floor: FCT mean / job", "error: FCT mean / job",
        "job, worst seed", title=f"DCQCN, low thresholds, {seeds} seeds",
    )  # fmt: skip
    fabric = Fabric()
    patterns = {"DP ring, ECMP collisions": data_ring, "all-to-all in groups of 16": everybody}
    for name, pattern_of in patterns.items():
        for size in sizes:
            pattern = pattern_of(fabric)
            settings = [
                PacketSettings(congestion="dcqcn", dcqcn=LOW, window=2, seed=seed)
                for seed in range(seeds)
            ]
            truth = [
                run(fabric.engine(PacketEngine, each), pattern, size * MB) for each in settings
            ]
            fast = [
                run(fabric.engine(HybridEngine, each), pattern, size * MB) for each in settings
            ]
            pairs = [(a, b) for at, a in enumerate(truth) for b in truth[:at]]
            own = list(zip(fast, truth, strict=True))
            job = [abs(a.job_s / b.job_s - 1) for a, b in own]
            table.add_row(
                name,
                f"{size:.0f}",
                f"{sum(each.cpu_s for each in truth) / sum(each.cpu_s for each in fast):.1f}x",
                f"{mean_error(pairs):.2%} / {mean_job(pairs):.2%}",
                f"{mean_error(own):.2%} / {mean_job(own):.2%}",
                f"{max(job):.2%}",
            )
    return table


def mean_error(pairs: list[tuple[Run, Run]]) -> float:
    return float(np.mean([np.abs(a.took_s / b.took_s - 1).mean() for a, b in pairs]))


def mean_job(pairs: list[tuple[Run, Run]]) -> float:
    return float(np.mean([abs(a.job_s / b.job_s - 1) for a, b in pairs]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="of DCQCN's marks")
    seeds = parser.parse_args().seeds
    fabric = Fabric()
    for kind in (PacketEngine, HybridEngine):
        run(fabric.engine(kind, PacketSettings()), data_ring(fabric), 16 * MB)
    Console(width=150).print(marked([64.0, 256.0], seeds))


if __name__ == "__main__":
    main()
