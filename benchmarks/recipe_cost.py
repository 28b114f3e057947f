"""CPU seconds per prediction: ``python -m benchmarks.recipe_cost [--repeat N]``.

Two figures a case: *again* predicts the same recipe once more (all prices known), *new* starts
from empty caches in a running process (every shape priced for the first time). Last the whole
command of one recipe, *cold*: a process of its own, imports and settings included.
"""

from __future__ import annotations

import argparse
import functools
import gc
import statistics
import sys
import time

from rich.console import Console
from rich.table import Table

from benchmarks.commands import ROOT, cost_of
from benchmarks.question import job
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.predictor.replay import prices
from trainscout.simulators.predictor.replay.assemble import Assembler
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.replay.steady import replay_step
from trainscout.simulators.predictor.replay.sweep import sweep
from trainscout.simulators.predictor.workload.megatron import build_workload

OVERLAP = {"sp": True, "overlap_grad_reduce": True, "overlap_param_gather": True}
BIG = ("model=gpt175b", "cluster=h100_8192", "training.global_batch_size=4096")
CASES: dict[str, tuple[Recipe, tuple[str, ...]]] = {
    "gpt175b, 96 GPUs": (Recipe(tp=8, pp=12, sp=True), ("model=gpt175b", "cluster=h800_96")),
    "gpt175b, 96 GPUs, VPP 2": (
        Recipe(tp=8, pp=12, vpp=2, sp=True),
        ("model=gpt175b", "cluster=h800_96"),
    ),
    "gpt175b, 96 GPUs, VPP 8": (
        Recipe(tp=8, pp=12, vpp=8, sp=True),
        ("model=gpt175b", "cluster=h800_96"),
    ),
    "gpt175b, 96 GPUs, DP 2, overlap": (
        Recipe(tp=8, pp=6, vpp=4, **OVERLAP),
        ("model=gpt175b", "cluster=h800_96"),
    ),
    "gpt175b, 8192 GPUs": (Recipe(tp=8, pp=16, **OVERLAP), BIG),
    "gpt175b, 8192 GPUs, VPP 3": (Recipe(tp=8, pp=16, vpp=3, **OVERLAP), BIG),
    "gpt175b, 8192 GPUs, VPP 6": (Recipe(tp=8, pp=16, vpp=6, **OVERLAP), BIG),
    "llama3_70b, 64 GPUs, FSDP": (
        Recipe(zero_stage=3, micro_batch=1, recompute="full"),
        ("model=llama3_70b", "cluster=h100_64"),
    ),
    "mixtral_8x7b, 64 GPUs, EP 8": (
        Recipe(tp=1, pp=4, ep=8, vpp=2, overlap_grad_reduce=True),
        ("model=mixtral_8x7b", "cluster=h100_64"),
    ),
}


@functools.cache
def _caches() -> list[functools._lru_cache_wrapper[object]]:
    """Found once: looking through all objects leaves a processor's caches empty, too."""
    predictor = "trainscout.simulators.predictor"
    of = (f"{predictor}.workload", f"{predictor}.collectives.price")
    return [
        prices._priced,
        *(
            each
            for each in gc.get_objects()
            if isinstance(each, functools._lru_cache_wrapper)
            and str(getattr(each, "__module__", "")).startswith(of)
        ),
    ]


def _median_s(simulate: ReplaySimulator, question: Job, repeat: int, *, forget: bool) -> float:
    seconds = []
    for _ in range(repeat):
        if forget:
            for each in _caches():
                each.cache_clear()
        begin = time.process_time()
        simulate.simulate(question)
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=30, help="predictions per figure")
    repeat = parser.parse_args().repeat
    simulator = ReplaySimulator()
    recipe, overrides = next(iter(CASES.values()))
    first = job(recipe, *overrides)
    while "compiled" not in vars(sweep):  # as in any process that has played some
        simulator.simulate(first)
    table = Table("case", "micro-batches", "replayed", "again, ms", "new, ms", "step, s")
    for name, (recipe, overrides) in CASES.items():
        question = job(recipe, *overrides)
        check_job(question)
        prediction = simulator.simulate(question)
        again = _median_s(simulator, question, repeat, forget=False)
        new = _median_s(simulator, question, max(3, repeat // 3), forget=True)
        workload = build_workload(question)
        pricer = Pricer(question.gpu, question.cluster, question.framework, workload.communicators)
        step = replay_step(question, Assembler(question, workload, pricer).assemble)
        table.add_row(
            name,
            str(step.micro_batches),
            str(step.simulated_micro_batches),
            f"{again * 1e3:.2f}",
            f"{new * 1e3:.2f}",
            f"{prediction.step_time_s:.3f}",
        )
    Console(width=110).print(table)
    print(f"cold trainscout simulate: {_cold_s():.2f} CPU s")


def _cold_s() -> float:
    """The least of three runs of the command, user and system time."""
    command = [sys.executable, "-m", "trainscout", "simulate", "model=gpt175b"]
    command += ["cluster=h800_96", "recipe.tp=8", "recipe.pp=12"]
    return min(cost_of(command, ROOT).cpu_s for _ in range(3))


if __name__ == "__main__":
    main()
