"""How fast each search comes within 1 % of the proved optimum; a table of docs/search.md.

    python -m benchmarks.search                      # every case, every backend
    python -m benchmarks.search --cases gpt175b --samplers tpe cma --seeds 3

The optimum is that of exact search, which benchmarks/search_exact.py holds to simulating
everything. Each backend then searches with several seeds, with and without the screening of
recipes by their bounds, in one process. Counted until the best recipe so far is within 1 % of the
optimum: recipes simulated, recipes considered, and CPU seconds. A run that never comes there
counts as infinite. The last columns are what is left above the optimum in the end.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.search_exact import SIMULATED, plan_of
from trainscout.commands.search_plan import SearchPlan
from trainscout.optimizer.options import ExecutorOptions
from trainscout.optimizer.study import run_search
from trainscout.optimizer.trial import SearchResult

CASES = {
    "gpt3_2b7": "model=gpt3_2b7 cluster=v100_16 training.precision=fp16 space=maya_table3",
    "gpt3_18b4": "model=gpt3_18b4 cluster=h100_64 space=maya_table3",
    "gpt175b": "model=gpt175b cluster=h800_96",
    "mixtral": "model=mixtral_8x7b cluster=h100_64",
    "llama405b": "model=llama3_405b cluster=h100_8192 training.global_batch_size=2048",
}
SAMPLERS = ("random", "tpe", "gp", "nsga2", "cmaes", "cma")
NEEDS = {"gp": "torch", "cma": "cma"}
# Fewer for what is shown for comparison: searches that simulate everything they ask for, and the
# Gaussian process, which takes a minute for what the others do in seconds.
FEW_SEEDS = 3
CLOSE = 0.01


@dataclass(frozen=True)
class Course:
    """One search: counts and seconds until close to the optimum (infinite: never), and the
    fraction that it ended above it."""

    simulated: float
    considered: float
    seconds: float
    regret: float


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--seeds", type=int, default=10, help="searches of each kind")
    options = parser.parse_args(arguments)
    print("| question | search | bounds | seeds | simulated to 1 % | considered to 1 % "
          "| CPU s to 1 % | regret: median | worst |")  # fmt: skip
    print("|---|---|---|---:|---:|---:|---:|---:|---:|")
    for case in options.cases:
        exact, spent = searched(plan_of(CASES[case], "search=exact"), 0)
        optimum = exact.best[0].values
        assert optimum is not None
        simulated = sum(exact.counts()[status] for status in SIMULATED)
        print(f"| {case} | exact | yes | 1 | {simulated} | {simulated} | {spent[-1][1]:.1f} | "
              "0.00 % (proved) | |", flush=True)  # fmt: skip
        for sampler in options.samplers:
            if importlib.util.find_spec(NEEDS.get(sampler, "optuna")) is None:
                continue
            for bounds in (True, False):
                plan = plan_of(CASES[case], f"search={sampler}", f"search.bounds={bounds}")
                few = not bounds or sampler == "gp"
                seeds = min(options.seeds, FEW_SEEDS) if few else options.seeds
                courses = [course(plan, seed, optimum[0]) for seed in range(seeds)]
                print(f"| {case} | {sampler} | {'yes' if bounds else 'no'} | {row(courses)} |",
                      flush=True)  # fmt: skip


def searched(plan: SearchPlan, seed: int) -> tuple[SearchResult, list[tuple[int, float]]]:
    """The result, and after each batch the recipes considered and the CPU seconds spent."""
    spent: list[tuple[int, float]] = []
    started_s = time.process_time()
    result = run_search(
        # Early stopping would hide what the budget is worth.
        replace(
            plan,
            options=replace(plan.options, patience=None),
            executor=ExecutorOptions("serial", 1),
            seed=seed,
        ),
        on_progress=lambda each: spent.append((each.considered, time.process_time() - started_s)),
    )
    return result, spent


def course(plan: SearchPlan, seed: int, optimum: float) -> Course:
    """How one search came along."""
    result, spent = searched(plan, seed)
    enough = optimum + CLOSE * abs(optimum)
    loss = plan.objective.losses
    simulated = considered = 0
    best = math.inf
    for trial in result.trials:
        simulated += trial.status in SIMULATED
        considered += trial.status != "invalid"
        if trial.status == "ok" and trial.values is not None:
            best = min(best, loss(trial.values)[0])
        if best <= enough:
            break
    regret = math.inf
    if result.best:
        (found, *_) = loss(result.best[0].values or ())
        regret = (found - optimum) / abs(optimum)
    if best > enough:
        return Course(math.inf, math.inf, math.inf, regret)
    seconds = next(cpu_s for count, cpu_s in spent if count >= considered)
    return Course(simulated, considered, seconds, regret)


def row(courses: list[Course]) -> str:
    cells = [str(len(courses))]
    for name, form in (("simulated", ".0f"), ("considered", ".0f"), ("seconds", ".1f")):
        value = statistics.median(getattr(each, name) for each in courses)
        cells.append("never" if math.isinf(value) else f"{value:{form}}")
    regrets = [each.regret for each in courses]
    cells += [f"{statistics.median(regrets):.2%}", f"{max(regrets):.2%}"]
    return " | ".join(cells)


if __name__ == "__main__":
    main()
