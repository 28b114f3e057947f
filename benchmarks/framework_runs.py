"""Published runs of ordinary training scripts against predictions from their traces.

    python -m benchmarks.framework_runs [ID ...]

For each row of ``data/framework_runs.csv`` the script runs as rank 0 on virtual GPUs, its trace is
replayed, and the step time compared. Nothing is fitted to these rows. A row takes 10 to 60 s.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.laboratory.score import summarise
from trainscout.simulators.virtual_cluster.execution.step import replay_ranks
from trainscout.simulators.virtual_cluster.traces.files import read_directory

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).parents[1]
# What TorchTitan's command needs on virtual GPUs, and its Llama 3 8B.
TORCHTITAN = (
    "--module llama3 --config llama3_8b --parallelism.spmd-backend partial_dtensor "
    "--training.disable-cuda-graphs --training.steps 3 --checkpoint.no-enable "
    "--validator.no-enable --hf-assets-path assets/tokenizer "
    "--dataloader.dataset c4_test --dataloader.dataset-path assets/data"
)


def predicted_s(row: pd.Series, folder: Path) -> float:
    """Step time of one row's run, from the trace of its rank 0."""
    script = shlex.split(row["script"])
    if "torchtitan.train" in script:
        place = script.index("torchtitan.train") + 1
        script[place:place] = shlex.split(TORCHTITAN)
        write = [sys.executable, str(ROOT / "examples" / "torchtitan_assets.py")]
        subprocess.run([*write, "--output", "assets"], cwd=folder, check=True)
    else:
        script[0] = str(ROOT / script[0])
    options = ["--world-size", str(row["world_size"]), "--gpu", row["gpu"], "--no-check"]
    command = [sys.executable, "-m", "trainscout", "run", *options, "--", *script]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=environment)
    cluster, gpu = load_catalogue().machines(row["cluster"], row["gpu"])
    framework = load_catalogue().frameworks[row["framework"]]
    traces = read_directory(folder / "traces")
    return replay_ranks(traces, gpu, cluster, framework, host="declared").step_time_s


def main(chosen: list[str]) -> None:
    rows = pd.read_csv(DATA / "framework_runs.csv", keep_default_na=False)
    rows["letter"] = rows["source"].str.split("[@:]").str[0].factorize()[0]
    if chosen:
        rows = rows[rows["id"].isin(chosen)]
    errors = []
    print("| run | measured ms | predicted ms | error | source |\n|---|---|---|---|---|")
    for _, row in rows.iterrows():
        with tempfile.TemporaryDirectory() as folder:
            step_ms = 1e3 * predicted_s(row, Path(folder))
        measured_ms, source = float(row["measured_ms"]), "abc"[row["letter"]]
        errors.append(step_ms / measured_ms - 1)
        shown = f"{measured_ms:.1f} | {step_ms:.1f} | {100 * errors[-1]:+.1f} %"
        print(f"| {row['run']} | {shown} | {source} |", flush=True)
    print(summarise(errors))


if __name__ == "__main__":
    main(sys.argv[1:])
