"""Predicted against published step times of Korthikanti et al. 2022 (table 5 and abstract).

``python -m benchmarks.korthikanti`` prints a Markdown table. The rows are in
``benchmarks/data/korthikanti_2022.csv`` with their source; no parameter was fitted to them.
Assumed, because the paper does not print it: NCCL 2.12, and kernels before flash attention.
"""

from __future__ import annotations

import csv
from pathlib import Path

from benchmarks.question import job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator

ROWS = Path(__file__).parent / "data" / "korthikanti_2022.csv"
MODELS = {"GPT-22B": "gpt22b", "GPT-175B": "gpt175b", "GPT-530B": "gpt530b"}


def main() -> None:
    simulator = ReplaySimulator()
    print("| run | GPUs | recipe | published, s | predicted, s | error |")
    print("|---|---:|---|---:|---:|---:|")
    errors = []
    for row in csv.DictReader(ROWS.read_text().splitlines()):
        recipe = Recipe(
            tp=int(row["tp"]),
            pp=int(row["pp"]),
            vpp=int(row["vpp"]),
            micro_batch=int(row["micro_batch"]),
            recompute=row["recompute"],
            sp=row["sp"] == "1",
            zero_stage=0,
        )
        question = job(
            recipe,
            f"model={MODELS[row['model']]}",
            "cluster=a100_512",
            f"cluster.num_nodes={int(row['num_gpus']) // 8}",
            "cluster.nccl_version='2.12'",
            f"training.global_batch_size={row['global_batch']}",
            f"training.precision={row['dtype']}",
            "framework.attention=unfused",
        )
        check_job(question)
        published = float(row["measured_iter_s"] or row["derived_iter_s"])
        predicted = simulator.simulate(question).step_time_s
        errors.append(predicted / published - 1)
        layout = f"tp{recipe.tp} pp{recipe.pp} dp{question.dp} vpp{recipe.vpp}"
        layout += f" mb{recipe.micro_batch} {recipe.recompute}" + (" sp" if recipe.sp else "")
        print(
            f"| {row['model']} | {row['num_gpus']} | {layout} | {published:.2f} | "
            f"{predicted:.2f} | {errors[-1]:+.1%} |"
        )
    size = len(errors)
    mean, bias = sum(map(abs, errors)) / size, sum(errors) / size
    print(f"\n{size} rows: mean absolute error {mean:.1%}, bias {bias:+.1%}")


if __name__ == "__main__":
    main()
