"""Speed of the flow engine, in CPU seconds of one thread: ``python -m benchmarks.flow_engine``.

Compiled code is loaded before anything is timed. Every figure is the median of ``--repeat`` runs
with the range beside it: other work on the machine shows there.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.question import declared
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.network.flow import FlowEngine, max_min_rates
from trainscout.simulators.predictor.network.topology.network import Network
from trainscout.simulators.predictor.network.topology.routing import Routes, find_routes
from trainscout.simulators.predictor.network.topology.wiring import build_network

T = TypeVar("T")


def network(cluster: str, fabric: str = "leaf_spine", **changes: object) -> Network:
    """A declared cluster wired as a declared topology."""
    switches = load_catalogue().topologies[fabric]
    question = declared(f"cluster={cluster}")
    changed = dataclasses.replace(switches, **changes)  # type: ignore[arg-type]
    return build_network(question.cluster, question.gpu, changed)


def random_pairs(gpus: int, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    source = random.integers(0, gpus, count)
    return source, (source + random.integers(1, gpus, count)) % gpus


def timed(run: Callable[[], T], repeat: int) -> tuple[list[float], T]:
    """CPU seconds of each run after one that is not counted, and the last result."""
    result = run()
    seconds = []
    for _ in range(repeat):
        begin = time.process_time()
        result = run()
        seconds.append(time.process_time() - begin)
    return seconds, result


def spread(values: list[float], scale: float, digits: int) -> str:
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle * scale:,.{digits}f} ({low * scale:,.{digits}f}-{high * scale:,.{digits}f})"


def routing(repeat: int) -> Table:
    table = Table("topology of 16,384 GPUs", "links", "100,000 routes, ms", title="Routing")
    for fabric in ("leaf_spine", "fat_tree", "rail_optimised_cores"):
        wired = network("h100_16384", fabric)
        source, destination = random_pairs(wired.gpus, 100_000)
        seconds, _ = timed(lambda: find_routes(wired, source, destination), repeat)  # noqa: B023
        table.add_row(fabric, f"{wired.num_links:,}", spread(seconds, 1e3, 0))
    return table


def full_solves(repeat: int) -> Table:
    table = Table("GPUs", "flows", "links in use", "solve, ms", title="One full solve")
    for cluster, count in (
        ("h100_512", 1_000),
        ("h100_512", 10_000),
        ("h100_8192", 10_000),
        ("h100_16384", 100_000),
    ):
        wired = network(cluster)
        links = find_routes(wired, *random_pairs(wired.gpus, count)).links
        # The tables a solve works on are built here too, as every caller must.
        seconds, _ = timed(lambda: max_min_rates(links, wired.rate_bytes_per_s), repeat)  # noqa: B023
        used = len(np.unique(links[links >= 0]))
        table.add_row(f"{wired.gpus:,}", f"{count:,}", f"{used:,}", spread(seconds, 1e3, 2))
    return table


def every_completion(repeat: int) -> Table:
    table = Table(
        "flows", "where", "solves", "solves/s", title="Random sizes, re-solved at every completion"
    )
    wired = network("h100_512")
    for count, inside in ((1_000, False), (5_000, False), (5_000, True)):
        source, destination = random_pairs(wired.gpus, count)
        if inside:
            destination = source // 8 * 8 + (source + 1 + destination % 7) % 8
        routes = find_routes(wired, source, destination)
        sizes = np.random.default_rng(1).uniform(1e6, 64e6, count)

        def run() -> int:
            engine = FlowEngine(wired.rate_bytes_per_s, wired.max_hops)
            engine.add(routes, sizes)  # noqa: B023
            engine.advance()
            return engine.solves

        seconds, solves = timed(run, repeat)
        where = "64 nodes, each its own component" if inside else "one component"
        rates = [solves / each for each in seconds]
        table.add_row(f"{count:,}", where, f"{solves:,}", spread(rates, 1.0, 0))
    return table


def rings(repeat: int) -> Table:
    table = Table(
        "ranks", "flows", "solves", "flows/s", title="Ring of 20 dependent steps, one NIC a rank"
    )
    for ranks in (1024, 8192):
        steps = 20
        rank = np.arange(ranks)
        links = np.tile(np.stack([rank, ranks + (rank + 1) % ranks], axis=1), (steps, 1))
        flow = np.arange(ranks, steps * ranks)
        before = (flow // ranks - 1) * ranks + (flow - 1) % ranks
        routes = Routes(links, np.full(len(links), 2e-6))
        after = np.stack([flow, before], axis=1)

        def run() -> int:
            engine = FlowEngine(np.full(2 * ranks, 50e9), 2)  # noqa: B023
            engine.add(routes, 1e6, after=after)  # noqa: B023
            engine.advance()
            return engine.solves

        seconds, solves = timed(run, repeat)
        rates = [len(links) / each for each in seconds]
        table.add_row(f"{ranks:,}", f"{len(links):,}", str(solves), spread(rates, 1e-6, 2) + " M")
    return table


@dataclasses.dataclass(frozen=True)
class Late:
    """What a run with late announcements did."""

    completion_s: np.ndarray
    solves: int
    returns: int
    pieces: int


def play_late(
    wired: Network,
    routes: Routes,
    sizes: np.ndarray,
    starts: np.ndarray,
    heard: np.ndarray,
    *,
    forget: bool,
) -> Late:
    """Announce each flow when it is heard of, everything before having been played."""
    order = np.argsort(heard, kind="stable")
    to_come = np.minimum.accumulate(starts[order][::-1])[::-1]
    engine = FlowEngine(wired.rate_bytes_per_s, wired.max_hops)
    completion = np.zeros(len(starts))
    number = np.zeros(len(starts), dtype=np.int64)
    stated: dict[int, float] = {}
    returns = pieces = 0
    for place, index in enumerate(order):
        report = engine.advance(heard[index])
        stated.update(zip(report.flows.tolist(), report.completion_s.tolist(), strict=True))
        if forget:
            engine.forget(to_come[place])
        returns += bool(starts[index] < heard[index])
        row = slice(index, index + 1)
        one = Routes(routes.links[row], routes.latency_s[row])
        (number[index],) = engine.add(one, sizes[index], starts[index])
        pieces = max(pieces, engine.pieces_kept)
    report = engine.advance()
    stated.update(zip(report.flows.tolist(), report.completion_s.tolist(), strict=True))
    completion[:] = [stated[int(flow)] for flow in number]
    return Late(completion, engine.solves, returns, pieces)


def rollback(repeat: int) -> Table:
    table = Table(
        "announced",
        "solves",
        "CPU s",
        "returns",
        "pieces kept",
        "equal to the bit",
        title="600 flows of 0.4-12.8 MB between 64 GPUs, started within 2 ms",
    )
    wired = network("h100_64", oversubscription=2.0)
    random = np.random.default_rng(2)
    routes = find_routes(wired, *random_pairs(wired.gpus, 600, seed=2))
    sizes, starts = random.uniform(0.4e6, 12.8e6, 600), np.sort(random.uniform(0, 2e-3, 600))

    def in_order() -> tuple[np.ndarray, int]:
        engine = FlowEngine(wired.rate_bytes_per_s, wired.max_hops)
        flows = engine.add(routes, sizes, starts)
        engine.advance()
        return engine.completion_s(flows), engine.solves

    seconds, (expected, solves) = timed(in_order, repeat)
    table.add_row("all before the first event", f"{solves:,}", spread(seconds, 1, 3), "", "", "")
    for name, late_s, forget in (
        ("one by one, on time", 0.0, True),
        ("up to 300 us late", 300e-6, False),
        ("up to 300 us late, forgetting", 300e-6, True),
    ):
        heard = starts + np.random.default_rng(3).uniform(0, late_s, 600)
        seconds, late = timed(
            lambda: play_late(wired, routes, sizes, starts, heard, forget=forget),  # noqa: B023
            repeat,
        )
        table.add_row(
            name,
            f"{late.solves:,}",
            spread(seconds, 1, 3),
            str(late.returns),
            f"{late.pieces:,}",
            "yes" if (late.completion_s == expected).all() else "NO",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7, help="runs a figure")
    repeat = parser.parse_args().repeat
    console = Console(width=110)
    for section in (routing, full_solves, every_completion, rings, rollback):
        console.print(section(repeat))


if __name__ == "__main__":
    main()
