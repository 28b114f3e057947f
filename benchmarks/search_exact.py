"""What exact search costs, saves and proves; the tables of docs/search.md.

    python -m benchmarks.search_exact certificates   # whole commands: points, simulations, seconds
    python -m benchmarks.search_exact truth          # against simulating everything
    python -m benchmarks.search_exact bounds         # bound against simulation, random recipes

Seconds are CPU seconds of all processes, start-up included, which other work on the machine
changes little.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from hydra import compose, initialize_config_module

from benchmarks.commands import ROOT, cost_of
from trainscout.commands.schemas import register_commands
from trainscout.commands.search_plan import SearchPlan, build_plan
from trainscout.optimizer.options import ExecutorOptions
from trainscout.optimizer.study import run_search
from trainscout.optimizer.survey import survey
from trainscout.optimizer.trial import SearchResult
from trainscout.optimizer.union import compile_space
from trainscout.pruning.bounds.recipe_bounds import Bounds
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator

TABLE3 = "model=gpt3_18b4 cluster=h100_64 space=maya_table3"
GPT175B = "model=gpt175b cluster=h800_96"
MIXTRAL = "model=mixtral_8x7b cluster=h100_64"
DEEPSEEK = "model=deepseek_v3 cluster=h100_512 training.global_batch_size=4096"
LLAMA = "model=llama3_405b cluster=h100_8192 training.global_batch_size=2048"
LLAMA_70B = "model=llama3_70b cluster=h100_64"
LLAMA_512 = "model=llama3_405b cluster=h100_512 training.global_batch_size=256"
LARGE = "model=gpt175b cluster=h100_8192 space=large"
FRONT = "objective=time_memory"
SAMPLE = 500
SIMULATED = ("ok", "tight", "oom")


def plan_of(case: str, *overrides: str) -> SearchPlan:
    register_commands()
    with initialize_config_module("conf", version_base="1.3"):
        return build_plan(compose("config", overrides=[*case.split(), *overrides]))


def certificates() -> None:
    print("| question | points | recipes | no memory | too slow | simulated | discarded | CPU s |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    front = f"{GPT175B} {FRONT}"
    cases = (TABLE3, GPT175B, front, LLAMA_70B, MIXTRAL, LLAMA_512, DEEPSEEK, LLAMA, LARGE)
    for case in cases:
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, "optimize.py", *case.split(), "search=exact"]
            command += ["tracking=none", f"hydra.run.dir={directory}"]
            used_s = cost_of(command, ROOT).cpu_s
            proof = json.loads((Path(directory) / "certificate.json").read_text())
        counts = [proof[name] for name in ("points", "recipes", "out_of_memory")]
        counts += [proof[name] for name in ("out_of_reach", "simulated")]
        cells = " | ".join(f"{count:,}" for count in counts)
        print(
            f"| `{case}` | {cells} | {proof['discarded_share']:.2%} | {used_s:.1f} |", flush=True
        )
        assert proof["proved"], case


def truth() -> None:
    print("| question | recipes simulated by grid | by exact | same best 10, same order |")
    print("|---|---:|---:|---|")
    cases = [TABLE3, f"{GPT175B} space=megatron", f"{TABLE3} {FRONT}", f"{TABLE3} objective=mfu"]
    cases += ["model=llama3_70b cluster=h100_64 space=moye", f"{MIXTRAL} space=moye"]
    for case in cases:
        grid, exact = (searched(case, sampler) for sampler in ("grid", "exact"))
        same = [(t.recipe, t.values) for t in grid.best] == [
            (t.recipe, t.values) for t in exact.best
        ]
        if FRONT in case:
            same = [t.recipe for t in grid.pareto] == [t.recipe for t in exact.pareto]
        simulated = [sum(r.counts()[s] for s in SIMULATED) for r in (grid, exact)]
        print(f"| `{case}` | {simulated[0]:,} | {simulated[1]:,} | {'yes' if same else 'NO'} |")


def searched(case: str, sampler: str) -> SearchResult:
    plan = plan_of(case, f"search={sampler}")
    serial = ExecutorOptions("serial", 1)
    return run_search(replace(plan, options=replace(plan.options, pruning=()), executor=serial))


def bounds() -> None:
    print("| question | sampled | below the bound | gap: median | 90 % | most | us a recipe |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    simulator = ReplaySimulator()
    for case in (TABLE3, GPT175B, MIXTRAL, DEEPSEEK, LLAMA, LARGE):
        plan = plan_of(case)
        surveyed = survey(compile_space(plan.space, plan.question))
        bounded = Bounds(plan.question.job)
        bounded(surveyed.recipes.take(slice(0, 1 << 17)))
        table = surveyed.recipes.take(slice(0, 1 << 17))
        started_s = time.process_time()
        found = bounded(table)
        each_us = (time.process_time() - started_s) / len(table) * 1e6
        rows = np.random.default_rng(0).choice(len(table), min(SAMPLE, len(table)), replace=False)
        gaps, broken = [], 0
        for row in map(int, rows):
            prediction = simulator.without_error_bar(plan.question.job(table[row]))
            memory = prediction.memory
            gaps.append(prediction.step_time_s / found.step_time_s[row] - 1)
            used = memory.capacity_bytes - memory.headroom_bytes
            broken += gaps[-1] < 0 or used < found.used_bytes[row]
        middle, most_of, most = np.quantile(gaps, [0.5, 0.9, 1.0])
        print(
            f"| `{case}` | {len(rows)} | {broken} | {middle:.2%} | {most_of:.2%} | {most:.2%} | "
            f"{each_us:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    TABLES = {"certificates": certificates, "truth": truth, "bounds": bounds}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=[*TABLES], help=", ".join(TABLES))
    for name in parser.parse_args().tables:
        TABLES[name]() if name in TABLES else parser.error(f"{name}: none of {', '.join(TABLES)}")
        print()
