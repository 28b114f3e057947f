"""What pruning saves and hides, and how close each sampler comes to the true optimum.

    python -m benchmarks.search_quality model=gpt175b cluster=h800_96

Arguments are those of ``optimize.py``. Simulates the whole space once without pruning (a minute
or two), then repeats every search from that table: exhaustively with pruning, and with each
sampler over several seeds. Prints what each tactic settled and got wrong, whether the best
recipes are still the same, and the samplers' regret (best found over true best, less one).
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from hydra import compose, initialize_config_dir

from conf.commands import register_commands
from conf.plan import SearchPlan, build_plan
from optimizer.options import SAMPLERS, ExecutorOptions, SearchOptions
from optimizer.study import run_search
from optimizer.trial import SearchResult
from simulators.job import Job, Recipe
from simulators.prediction import Prediction

SEEDS = range(5)
TABLE: dict[Recipe, Prediction] = {}


class TableSimulator:
    """Answers from the exhaustive search."""

    name = "table"

    def simulate(self, job: Job) -> Prediction:
        return TABLE[job.recipe]


def main(overrides: list[str]) -> None:
    register_commands()
    with initialize_config_dir(str(Path(__file__).parents[1] / "conf"), version_base=None):
        plan = build_plan(compose("config", overrides=overrides))
    grid = replace(plan.options, sampler="grid", n_trials=None, patience=None, options={})
    truth = run_search(
        plan.declared,
        plan.space,
        plan.objective,
        replace(grid, pruning=()),
        simulator=plan.simulator,
        executor=plan.executor,
    )
    TABLE.update({t.recipe: t.prediction for t in truth.trials if t.prediction is not None})
    print(f"exhaustive: {truth.counts()}, {truth.wall_s:.0f} s")
    show_pruning(plan, truth, from_table(plan, grid, 0))
    for sampler in SAMPLERS:
        # Neither tries its luck.
        if sampler in ("grid", "exact"):
            continue
        if sampler != "gp" or importlib.util.find_spec("torch"):
            show_sampler(plan, truth, sampler)


def from_table(plan: SearchPlan, options: SearchOptions, seed: int) -> SearchResult:
    return run_search(
        plan.declared,
        plan.space,
        plan.objective,
        options,
        simulator="__main__:TableSimulator",
        executor=ExecutorOptions("serial", 1),
        seed=seed,
    )


def show_pruning(plan: SearchPlan, truth: SearchResult, pruned: SearchResult) -> None:
    wrong_memory: Counter[str] = Counter()
    faster: dict[str, list[float]] = {}
    for trial in pruned.trials:
        if trial.status != "pruned" or trial.rule is None:
            continue
        actual = TABLE[trial.recipe]
        wrong_memory[trial.rule] += actual.fits == trial.rule.endswith("_oom")
        if trial.values is not None:
            settled = plan.objective.losses(trial.values)[0]
            real = plan.objective.losses(plan.objective.values(actual))[0]
            faster.setdefault(trial.rule, []).append((settled - real) / abs(settled))
    for rule, count in pruned.counts_by_rule("pruned").items():
        gains = faster.get(rule, [0.0])
        print(
            f"{rule}: settled {count}, wrong about memory {wrong_memory[rule]}, better than "
            f"settled {sum(gain > 0 for gain in gains)} (most: {max(gains):.2%})"
        )
    same = [t.recipe for t in pruned.best] == [t.recipe for t in truth.best]
    print(f"the {len(truth.best)} best recipes are {'the same' if same else 'NOT THE SAME'}")


def show_sampler(plan: SearchPlan, truth: SearchResult, sampler: str) -> None:
    options = replace(plan.options, sampler=sampler, patience=None, options={})
    (best, *_) = plan.objective.losses(truth.best[0].values or ())
    regrets, walls_s = [], []
    for seed in SEEDS:
        result = from_table(plan, options, seed)
        (found, *_) = plan.objective.losses(result.best[0].values or ())
        regrets.append((found - best) / abs(best))
        walls_s.append(result.wall_s)
    print(
        f"{sampler}: regret {', '.join(f'{regret:.2%}' for regret in regrets)}; "
        f"{options.n_trials} recipes; median {statistics.median(walls_s):.1f} s without simulating"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
