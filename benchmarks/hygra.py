"""HyGra's tables, ours beside: ``python -m benchmarks.hygra``.

Communications of one kind over 64 to 16,384 hosts (Table I), and one step of a model with all
kinds on one network (Table III). CPU seconds of one thread, compiled code loaded before; one run a
cell. Errors are those of completion times against every packet played: cells of more packet-hops
than ``--most-hops`` are played by the hybrid engine alone. ``--write`` renews those rows of the
page's tables that were played.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.hygra_patterns import (
    MB,
    Fabric,
    Pattern,
    Run,
    data_ring,
    mixed,
    pipeline,
    run,
    tensor_ring,
)
from benchmarks.question import compose_question
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.network.choice import CongestedNetwork, NetworkChoice
from trainscout.simulators.predictor.network.hybrid.engine import HybridEngine
from trainscout.simulators.predictor.network.hybrid.settings import HybridSettings
from trainscout.simulators.predictor.network.packet.engine import PacketEngine
from trainscout.simulators.predictor.network.packet.settings import PacketSettings
from trainscout.simulators.predictor.network.together.activities import WORK
from trainscout.simulators.predictor.network.together.play import PlayedTogether, play_together
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.predictor.replay.whole_step import unhurried_step
from trainscout.simulators.predictor.workload.megatron import build_workload

KINDS = {"PP": pipeline, "TP": tensor_ring, "DP": data_ring, "mixed": mixed}
# Whose flows meet by chance.
COLLIDING = ("PP", "mixed")
# HyGra's Table I (mean and most FCT error in percent, of one size) and Fig. 4 (speed-up).
PUBLISHED_ERROR = {
    64: {"PP": (4.54, 4.54), "TP": (2.38, 4.51), "DP": (3.34, 4.46)},
    256: {"PP": (1.54, 1.54), "TP": (0.82, 1.53), "DP": (0.87, 1.48)},
    1024: {"PP": (0.06, 0.07), "TP": (0.03, 0.06), "DP": (0.01, 0.06)},
    4096: {"PP": (0.056, 0.074), "TP": (0.03, 0.058), "DP": (0.029, 0.055)},
    16384: {"PP": (0.06, 0.07), "TP": (0.03, 0.03), "DP": (0.03, 0.03)},
}
# Table III, over all of its two models and two packet simulators: 128 to 512 nodes of steps.
PUBLISHED_MIXED = (4.2, 6.7)
PUBLISHED_SPEED = {"PP": "5-8x", "TP": "> 11.3x", "DP": "> 3.3x", "mixed": "1.2-15.5x"}
# Sections of the page, and how many of the first columns distinguish the rows of each.
KEYS = {"singles": 3, "chance": 5, "steps": 2}
ENGINES = {
    "flow": NetworkChoice("flow"),
    "hybrid, with memory": NetworkChoice("hybrid"),
    "hybrid, skips only": NetworkChoice("hybrid", hybrid=HybridSettings(memory=False)),
    "packet": NetworkChoice("packet"),
}


def fabric_of(hosts: int) -> Fabric:
    return Fabric(hosts, max(8, hosts // 16), 8 if hosts == 64 else 16)


def hops_of(what: Pattern, size: float) -> float:
    crossed = (what.routes.links >= 0).sum(axis=1)
    return float((crossed * what.share).sum() * size / PacketSettings().packet_bytes)


def every_packet(fabric: Fabric, what: Pattern, size: float, kept: Path | None, name: str) -> Run:
    """A cell with every packet played; read from the folder ``kept`` if it is there already."""
    file = None if kept is None else kept / f"{name}.npz"
    if file is not None and file.exists():
        with np.load(file, allow_pickle=False) as known:
            return Run(known["took_s"], *(float(known[of]) for of in ("job_s", "cpu_s")),
                       int(known["hops"]))  # fmt: skip
    found = run(fabric.engine(PacketEngine, PacketSettings()), what, size * MB)
    if file is not None:
        np.savez(file, **vars(found))
    return found


def singles(
    hosts: list[int], kinds: list[str], sizes: list[float], most_hops: float, kept: Path | None
) -> Table:
    table = Table(
        "nodes", "of", "MB", "packets, CPU s", "hybrid, CPU s", "speed-up", "HyGra's",
        "FCT error mean / max", "HyGra's", "job error", title="One kind of communication",
    )  # fmt: skip
    settings = PacketSettings()
    for count in hosts:
        fabric = fabric_of(count)
        for kind in kinds:
            for size in sizes:
                what = KINDS[kind](fabric)
                fast = run(fabric.engine(HybridEngine, settings), what, size * MB)
                truth: Run | None = None
                if hops_of(what, size * MB) <= most_hops:
                    name = f"{kind}_{count}_{size:.0f}"
                    truth = every_packet(fabric, what, size, kept, name)
                mean, most = PUBLISHED_ERROR[count].get(kind, PUBLISHED_MIXED)
                table.add_row(
                    f"{count:,}", kind, f"{size:.0f}", f"{truth.cpu_s:.2f}" if truth else "",
                    f"{fast.cpu_s:.3f}", f"{truth.cpu_s / fast.cpu_s:.1f}x" if truth else "",
                    PUBLISHED_SPEED[kind], *_errors(fast, truth), f"{mean}% / {most}%",
                    f"{fast.job_s / truth.job_s - 1:+.2%}" if truth else "",
                )  # fmt: skip
    return table


def chance(kinds: list[str], hosts: list[int], sizes: list[float], hashes: int) -> Table:
    """What chance does to flows that collide: under several hashes, every packet and the hybrid
    engine of flows that start up to a microsecond later, against every packet of those that do
    not. Means over the hashes, some with their standard errors."""
    table = Table(
        "nodes", "of", "MB", "hashes", "against packets", "FCT error mean", "most, median", "job",
        "job, most", "mean FCT", "CPU s", title="Hashed at random, started up to 1 us later",
    )  # fmt: skip
    for kind in kinds:
        for count, size in ((count, size) for count in hosts for size in sizes):
            fabric = fabric_of(count)
            runs: dict[str, list[tuple[Run, Run]]] = {"packets": [], "hybrid": []}
            for seed in range(hashes):
                what = KINDS[kind](fabric, seed=seed)
                later = np.random.default_rng(seed).uniform(0, 1e-6, len(what.routes.links))
                moved = replace(what, start_s=np.asarray(what.start_s) + later)
                truth = run(fabric.engine(PacketEngine, PacketSettings()), what, size * MB)
                for name, engine in (("packets", PacketEngine), ("hybrid", HybridEngine)):
                    found = run(fabric.engine(engine, PacketSettings()), moved, size * MB)
                    runs[name].append((found, truth))
            for name, pairs in runs.items():
                errors = [np.abs(each.took_s / of.took_s - 1) for each, of in pairs]
                job = [each.job_s / of.job_s - 1 for each, of in pairs]
                table.add_row(
                    f"{count:,}", kind, f"{size:.0f}", f"{hashes}", name,
                    f"{np.mean(errors):.1%}", f"{np.median([each.max() for each in errors]):.0%}",
                    _with_error(job), f"{max(map(abs, job)):.1%}",
                    _with_error([each.took_s.mean() / of.took_s.mean() - 1 for each, of in pairs]),
                    f"{np.mean([each.cpu_s for each, _ in pairs]):.2f}",
                )  # fmt: skip
    return table


def _with_error(values: list[float]) -> str:
    return f"{np.mean(values):+.1%} +- {np.std(values, ddof=1) / len(values) ** 0.5:.1%}"


def _errors(fast: Run, truth: Run | None) -> tuple[str]:
    if truth is None:
        return ("",)
    error = np.abs(fast.took_s / truth.took_s - 1)
    return (f"{error.mean():.2%} / {error.max():.2%}",)


@dataclass(frozen=True)
class Question:
    """A step to play whole: 128 GPUs over a leaf-spine, 2:1 oversubscribed."""

    model: str
    recipe: Recipe
    batch: int
    changes: tuple[str, ...] = ()


# A GPT of 13 billion parameters; and a mixture of experts, whose exchanges cross nodes.
STEPS = {
    "GPT 13B": Question(
        "gpt13b", Recipe(tp=8, sp=True, pp=4, recompute="full", overlap_grad_reduce=True), 32
    ),
    "Mixtral 8x7B, 8 layers": Question(
        "mixtral_8x7b",
        Recipe(tp=2, sp=True, pp=2, ep=8, etp=2, recompute="full", overlap_grad_reduce=True),
        64,
        ("model.num_layers=8",),
    ),
}


def steps(names: list[str], budget_s: float) -> Table:
    table = Table(
        "step", "engine", "CPU s", "speed-up", "seconds", "step error", "message error mean / max",
        "packet-hops", title="All kinds of communication on one network, 128 GPUs",
    )  # fmt: skip
    for name in names:
        of = STEPS[name]
        question = compose_question(
            f"model={of.model}", "cluster=h100_128", f"training.global_batch_size={of.batch}",
            *of.changes,
        )  # fmt: skip
        job = question.job(of.recipe)
        check_job(job)
        fabric = replace(
            load_catalogue().topologies["leaf_spine"], nics_per_leaf=16, oversubscription=2.0
        )
        of_network = CongestedNetwork(NetworkChoice("flow"), fabric)
        found = unhurried_step(job, build_workload(job), of_network)
        assert found is not None
        _, made, congestion = found
        network = congestion.model.network
        played = {
            engine: play_together(made.activities, network, settings, budget_s)
            for engine, settings in ENGINES.items()
        }
        truth, sent = played["packet"], made.activities.message != WORK
        for engine, each in played.items():
            table.add_row(name, engine, *_step_cells(each, truth, sent))
    return table


def _step_cells(each: PlayedTogether, truth: PlayedTogether, sent: np.ndarray) -> list[str]:
    if not truth.whole:
        seconds = f"{each.end_s.max():.4f}" if each.whole else f"{each.now_s:.4f} reached"
        return [f"{each.cpu_s:.1f}", "", seconds, "", "", f"{each.packet_hops:,}"]
    took, really = ((of.end_s - of.start_s)[sent] for of in (each, truth))
    error = np.abs(took / really - 1)
    return [
        f"{each.cpu_s:.1f}",
        f"{truth.cpu_s / each.cpu_s:.1f}x",
        f"{each.end_s.max():.4f}",
        f"{each.end_s.max() / truth.end_s.max() - 1:+.3%}",
        f"{error.mean():.2%} / {error.max():.2%}",
        f"{each.packet_hops:,}",
    ]


def with_rows(page: str, section: str, table: Table) -> str:
    """A page with the rows of ``table`` in the section's table, which stands between
    ``<!-- SECTION -->`` and ``<!-- end -->``: in place of those of the same key, or after them."""
    head, rest = page.split(f"<!-- {section} -->\n", 1)
    old, tail = rest.split("<!-- end -->", 1)

    def key(cells: list[str]) -> tuple[str, ...]:
        return tuple(cells[: KEYS[section]])

    written = [[cell.strip() for cell in line.strip("|").split("|")] for line in old.splitlines()]
    rows = {key(cells): cells for cells in written[2:]}
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        shown = [str(cell) for cell in cells]
        rows[key(shown)] = shown
    titles = [str(column.header) for column in table.columns]
    lines = [titles, ["---"] * len(titles), *rows.values()]
    made = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return f"{head}<!-- {section} -->\n{made}<!-- end -->{tail}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[64, 256, 1024], choices=list(PUBLISHED_ERROR)
    )
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--sizes", type=float, nargs="+", default=[16, 64], help="MB")
    parser.add_argument("--most-hops", type=float, default=3e8, help="that packets are played for")
    parser.add_argument("--references", type=Path, help="a folder to keep packets' answers in")
    parser.add_argument("--hashes", type=int, default=6, help="of flows that collide")
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--budget", type=float, default=3600, help="CPU s of one step's play")
    parser.add_argument("--write", type=Path, help="the page whose tables to renew, row by row")
    parser.add_argument("--sections", nargs="+", default=list(KEYS), choices=list(KEYS))
    arguments = parser.parse_args()
    for kind in (PacketEngine, HybridEngine):
        run(Fabric().engine(kind, PacketSettings()), data_ring(Fabric()), 16 * MB)
    makers: dict[str, Callable[[], Table]] = {
        "singles": lambda: singles(
            arguments.nodes,
            arguments.kinds,
            arguments.sizes,
            arguments.most_hops,
            arguments.references,
        ),
        "chance": lambda: chance(
            [kind for kind in arguments.kinds if kind in COLLIDING],
            arguments.nodes,
            arguments.sizes,
            arguments.hashes,
        ),
        "steps": lambda: steps(arguments.steps, arguments.budget),
    }
    console = Console(width=160)
    for section in arguments.sections:
        table = makers[section]()
        console.print(table)
        if arguments.write:
            page = arguments.write.read_text(encoding="utf-8")
            arguments.write.write_text(with_rows(page, section, table), encoding="utf-8")


if __name__ == "__main__":
    main()
