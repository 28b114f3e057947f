"""What each pruning tactic resolves, and whether it hides anything.

    python -m benchmarks.tactics model=gpt175b cluster=h800_96

Arguments are those of ``optimize.py``. Simulates the whole space once without pruning (a minute
or two), then searches it exhaustively again with pruning, from that table. Prints what each tactic
resolved and got wrong, and whether the best recipes are still the same.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from hydra import compose, initialize_config_dir

from trainscout.commands.schemas import register_commands
from trainscout.commands.search_plan import SearchPlan, build_plan
from trainscout.optimizer.options import ExecutorOptions, SearchOptions
from trainscout.optimizer.study import run_search
from trainscout.optimizer.trial import SearchResult
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe

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
    show_pruning(plan, truth, from_table(plan, grid))


def from_table(plan: SearchPlan, options: SearchOptions) -> SearchResult:
    return run_search(
        plan.declared,
        plan.space,
        plan.objective,
        options,
        simulator="__main__:TableSimulator",
        executor=ExecutorOptions("serial", 1),
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
            resolved = plan.objective.losses(trial.values)[0]
            real = plan.objective.losses(plan.objective.values(actual))[0]
            faster.setdefault(trial.rule, []).append((resolved - real) / abs(resolved))
    for rule, count in pruned.counts_by_rule("pruned").items():
        gains = faster.get(rule, [0.0])
        print(
            f"{rule}: resolved {count}, wrong about memory {wrong_memory[rule]}, better than "
            f"resolved {sum(gain > 0 for gain in gains)} (most: {max(gains):.2%})"
        )
    same = [t.recipe for t in pruned.best] == [t.recipe for t in truth.best]
    print(f"the {len(truth.best)} best recipes are {'the same' if same else 'NOT THE SAME'}")


if __name__ == "__main__":
    main(sys.argv[1:])
