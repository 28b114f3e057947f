"""What tracing costs: ``python -m benchmarks.tracing`` prints a Markdown table.

CPU seconds (user and system) of this process and of those it starts, beside the wall clock: other
work on the machine moves the latter. Every line starts from an empty cache unless it says so.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.question import job
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.virtual_cluster.traced.layer_spec import (
    LAYER,
    LayerSpec,
    transformer_layer,
)

ROOT = Path(__file__).parents[1]
GPT = ("model=gpt175b", "cluster=h800_96")
BIG = ("model=gpt175b", "cluster=h100_8192", "training.global_batch_size=4096")
VARIANTS = 100


@dataclass
class Cost:
    """Seconds and the most memory that one process of a measurement held."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0


@contextmanager
def measured() -> Iterator[Cost]:
    """Fill in what the body costs, processes it waits for included."""
    cost = Cost()
    wall_s, cpu_s = time.perf_counter(), _cpu_s()
    yield cost
    cost.wall_s, cost.cpu_s = time.perf_counter() - wall_s, _cpu_s() - cpu_s
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    cost.peak_bytes = 1024 * max(children, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _cpu_s() -> float:
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    usages = [resource.getrusage(who) for who in both]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    print("| what | CPU | wall | memory |")
    print("|---|---:|---:|---:|")
    for name, measure in MEASUREMENTS.items():
        # In a process of its own: emulation is for good, and the most memory is a process's.
        if len(sys.argv) > 1:
            if name == sys.argv[1]:
                _show(name, measure())
            continue
        command = [sys.executable, "-m", "benchmarks.tracing", name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        print(shown.splitlines()[-1], flush=True)


def _show(name: str, cost: Cost) -> None:
    seconds = [
        f"{each * 1e3:.0f} ms" if each < 1 else f"{each:.1f} s"
        for each in (cost.cpu_s, cost.wall_s)
    ]
    print(f"| {name} | {seconds[0]} | {seconds[1]} | {cost.peak_bytes / 1e6:.0f} MB |")


def _gpt_layers() -> list[LayerSpec]:
    """Different layers of GPT-175B."""
    specs: dict[LayerSpec, None] = {}
    for cp in (1, 2):
        for tp, sp in ((8, True), (8, False), (4, True), (2, True), (1, False)):
            for recompute in ("none", "selective", "full"):
                for micro_batch in (1, 2, 4, 8):
                    recipe = Recipe(tp=tp, sp=sp, cp=cp, micro_batch=micro_batch)
                    question = job(replace(recipe, recompute=recompute), *GPT)
                    specs[transformer_layer(question, is_moe=False, recompute=recompute)] = None
    return list(specs)[:VARIANTS]


def one_layer() -> Cost:
    """One of GPT-175B, in a process that has traced another before."""
    from trainscout.simulators.virtual_cluster.traced.recorder import LayerTracer

    specs = _gpt_layers()
    assert specs[0].kind == LAYER
    tracer = LayerTracer(job(Recipe(), *GPT).gpu)
    tracer.trace(specs[1])
    with measured() as cost:
        tracer.trace(specs[0])
    return cost


def many_layers() -> Cost:
    """A hundred layers from an empty cache, processes' start included."""
    from trainscout.simulators.virtual_cluster.traced.cache import TracedLayerCache
    from trainscout.simulators.virtual_cluster.traced.tracer import traced_layers

    with tempfile.TemporaryDirectory() as directory, measured() as cost:
        traced_layers(_gpt_layers(), job(Recipe(), *GPT).gpu, TracedLayerCache(Path(directory)))
    return cost


def one_rank() -> Cost:
    """Rank 24 of 96, four layers: a step of eight micro-batches and its process's start."""
    from trainscout.simulators.virtual_cluster.traced.verify import ask_for_ranks, rank_questions

    short = ("model.num_layers=16", "training.global_batch_size=24")
    question: Job = job(Recipe(tp=8, pp=4, sp=True), *GPT, *short)
    with tempfile.TemporaryDirectory() as directory, measured() as cost:
        asked = rank_questions(question, Path(directory))[1]
        ask_for_ranks(question, [{**asked, "micro_batches": [8]}])
    return cost


def groups() -> Cost:
    """Megatron-Core's groups at 16,384 ranks."""
    from trainscout.simulators.virtual_cluster.traced.recorder import LayerTracer

    recipe = Recipe(tp=8, pp=16, sp=True)
    question = job(
        recipe, "model=gpt175b", "cluster=h100_16384", "training.global_batch_size=2048"
    )
    tracer = LayerTracer(question.gpu)
    spec = transformer_layer(question, is_moe=False, recompute="none")
    tracer.trace(spec)
    from trainscout.simulators.virtual_cluster.traced import megatron_job

    tracer.restart(question.world_size)
    with measured() as cost:
        megatron_job.join_ranks(spec, pipeline_model_parallel_size=recipe.pp)
    return cost


def command(*settings: str, cached: bool) -> Cost:
    """``simulate.py simulator=traced``."""
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "TRAINSCOUT_CACHE": directory}
        call = [sys.executable, "simulate.py", "simulator=traced", *settings]

        def run() -> None:
            subprocess.run(call, cwd=ROOT, env=environment, check=True, capture_output=True)

        if cached:
            run()
        with measured() as cost:
            run()
    return cost


SMALL_RECIPE = ("recipe.tp=8", "recipe.pp=12", "recipe.sp=true")
BIG_RECIPE = ("recipe.tp=8", "recipe.pp=16", "recipe.sp=true", "recipe.overlap_grad_reduce=true")
MEASUREMENTS: dict[str, Callable[[], Cost]] = {
    "one GPT-175B layer: built, two rounds, lowered": one_layer,
    f"{VARIANTS} GPT-175B layers": many_layers,
    "a rank: 4 GPT-175B layers, 8 micro-batches": one_rank,
    "groups of 16,384 ranks": groups,
    "GPT-175B on 96 GPUs, nothing cached": lambda: command(*GPT, *SMALL_RECIPE, cached=False),
    "GPT-175B on 96 GPUs, from the cache": lambda: command(*GPT, *SMALL_RECIPE, cached=True),
    "GPT-175B on 8,192 GPUs, nothing cached": lambda: command(*BIG, *BIG_RECIPE, cached=False),
}


if __name__ == "__main__":
    main()
