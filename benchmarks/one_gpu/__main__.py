"""Measured steps of the small scripts beside what ``trainscout live`` predicts of them.

    python -m benchmarks.one_gpu predict ROUND [CASE ...]
    python -m benchmarks.one_gpu page docs/one-gpu.md

``predict`` runs each script on one virtual H100 (10 to 30 s a case) and keeps what it prints of
itself as a round of predictions; ``page`` writes the table from the committed measurements.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd

from benchmarks.one_gpu.script import CASES
from trainscout.simulators.laboratory.score import summarise

DATA = Path(__file__).parents[1] / "data"
MEASURED, PREDICTED = DATA / "one_gpu_steps.csv", DATA / "one_gpu_predictions.csv"
KEPT = ("step_s", "issued_s", "allocated_bytes", "reserved_bytes")
GIB = 2**30
_PAGE = """\
# Scripts on a real GPU

Ordinary training loops (`benchmarks/one_gpu/script.py`: plain PyTorch, transformers and its Trainer, PEFT, Lightning,
timm, PyTorch Geometric, DDP and FSDP2 of one rank, compiled ones) that time themselves, run unmodified
on one H100 80 GB (SXM), torch 2.11, CUDA 13.0, November 2026, and under `trainscout live --host declared`
(torch 2.13). Nothing is fitted to these rows. The *blind* predictions were committed before any script had seen
a GPU, the second round after seven had been measured and before the other {unseen}; *now* is this version.
Written by `python -m benchmarks.one_gpu page docs/one-gpu.md` from `benchmarks/data/one_gpu_*.csv`.

## Step time

Median step by CUDA events. *Waits for the host*: the script's small sizes, where the device idles.

| script | measured | blind | second | now | error now |
|---|---|---|---|---|---|
{times}

Errors, median / mean / p90: {summaries}.

## Memory

Most allocated and reserved by torch's allocator, GiB.

| script | allocated | predicted now | error | reserved | predicted now | error |
|---|---|---|---|---|---|---|
{memory}

"""


def predict(number: str, cases: list[str]) -> None:
    """Runs the cases and puts their rows in place of those of the same round."""
    rows = []
    script = str(Path(__file__).with_name("script.py"))
    options = ["--world-size", "1", "--cluster", "h100_128", "--host", "declared"]
    command = [sys.executable, "-m", "trainscout", "live", *options, "--", script]
    for case in cases:
        run = subprocess.run(
            [*command, case, "--steps", "2"], capture_output=True, text=True, check=True
        )
        (line,) = [line for line in run.stdout.splitlines() if '{"case"' in line]
        said = json.loads(line[line.index("{") :])
        row = {key: said[key.removesuffix("_bytes")] for key in KEPT}
        rows.append({"round": number, "case": case, **row})
    known = pd.read_csv(PREDICTED, dtype={"round": str})
    replaced = (known["round"] == number) & known["case"].isin(cases)
    pd.concat([known[~replaced], pd.DataFrame(rows)]).to_csv(PREDICTED, index=False)


def page(path: Path) -> None:
    """Writes the page from the committed tables."""
    measured = pd.read_csv(MEASURED, index_col="case", comment="#")
    known = pd.read_csv(PREDICTED, dtype={"round": str})
    rounds = {name: group.set_index("case") for name, group in known.groupby("round")}
    latest = {case: rounds[max(known[known["case"] == case]["round"])].loc[case] for case in CASES}
    times, memory = [], []
    errors: dict[str, list[float]] = {"blind": [], "now": []}
    for case, row in measured.iterrows():
        now = latest[str(case)]
        cells = []
        for name in ("1", "2"):
            found = rounds[name]["step_s"].get(case)
            cells.append("" if found is None else f"{1e3 * found:.1f}")
        error = now["step_s"] / row["step_s"] - 1
        errors["now"].append(error)
        errors["blind"].append(rounds["1"].loc[case, "step_s"] / row["step_s"] - 1)
        times.append(
            f"| {case} | {1e3 * row['step_s']:.1f} ms | {cells[0]} | {cells[1]} "
            f"| {1e3 * now['step_s']:.1f} | {error:+.1%} |"
        )
        line = f"| {case} "
        for kind in ("allocated_bytes", "reserved_bytes"):
            share = now[kind] / row[kind] - 1
            line += f"| {row[kind] / GIB:.2f} | {now[kind] / GIB:.2f} | {share:+.1%} "
        memory.append(line + "|")
    summaries = "; ".join(f"{name} {summarise(each)}" for name, each in errors.items())
    text = _PAGE.format(
        unseen=len(measured) - 7,
        times="\n".join(times),
        memory="\n".join(memory),
        summaries=summaries,
    )
    path.write_text(text + Path(__file__).with_name("findings.md").read_text())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["predict", number, *cases]:
            predict(number, cases or list(CASES))
        case ["page", path]:
            page(Path(path))
        case _:
            sys.exit(__doc__)
