"""Measured steps of the small scripts beside what ``trainscout live`` predicts of them.

    python -m benchmarks.one_gpu predict CASE ...
    python -m benchmarks.one_gpu page docs/one-gpu.md

``predict`` runs each script on one virtual H100 (10 to 30 s a case) and keeps what it prints of
itself; ``page`` writes the tables from what is committed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd

from trainscout.simulators.laboratory.score import summarise

DATA = Path(__file__).parents[1] / "data"
MEASURED, PREDICTED = DATA / "one_gpu_steps.csv", DATA / "one_gpu_predictions.csv"
KEPT = ("step_s", "issued_s", "allocated_bytes", "reserved_bytes")
GIB = 2**30
# Where the host had issued a step before this share of it had passed, the device bounds it.
HOST_AHEAD = 0.98
_PAGE = Path(__file__).with_name("page.md")


def predict(cases: list[str]) -> None:
    """Runs the cases and puts their rows in place of those that *now* has."""
    rows = []
    script = str(Path(__file__).with_name("script.py"))
    options = ["--world-size", "1", "--cluster", "h100_128", "--host", "declared"]
    command = [sys.executable, "-m", "trainscout", "live", *options, "--", script]
    for case in cases:
        run = subprocess.run(
            [*command, case, "--steps", "2"], capture_output=True, text=True, check=True
        )
        (line,) = [line for line in run.stdout.splitlines() if '{"case"' in line]
        stated = json.loads(line[line.index("{") :])
        row = {key: stated[key.removesuffix("_bytes")] for key in KEPT}
        rows.append({"version": "now", "case": case, **row})
    known = pd.read_csv(PREDICTED)
    replaced = (known["version"] == "now") & known["case"].isin(cases)
    pd.concat([known[~replaced], pd.DataFrame(rows)]).to_csv(PREDICTED, index=False)


def _summary(errors: pd.Series) -> str:
    found = summarise(errors.to_list())
    sizes = (found.median_abs_error, found.mean_abs_error, found.p90_abs_error)
    return " / ".join(f"{size:.1%}" for size in sizes if size is not None)


def page(path: Path) -> None:
    """Writes the page from the committed tables."""
    measured = pd.read_csv(MEASURED, index_col="case", comment="#")
    known = pd.read_csv(PREDICTED, index_col=["version", "case"])
    blind, latest = (known.loc[version].reindex(measured.index) for version in ("blind", "now"))
    times, memory = [], []
    ahead = measured["issued_s"] < HOST_AHEAD * measured["step_s"]
    for case, row in measured.iterrows():
        now = latest.loc[case]
        error = now["step_s"] / row["step_s"] - 1
        times.append(
            f"| {case} | {1e3 * row['step_s']:.1f} | {1e3 * blind['step_s'][case]:.1f} "
            f"| {1e3 * now['step_s']:.1f} | {error:+.1%} | {1e3 * row['issued_s']:.1f} "
            f"| {1e3 * now['issued_s']:.1f} | {row['launches']:.0f} |".replace("nan", "")
        )
        line = f"| {case} "
        for kind in ("allocated_bytes", "reserved_bytes"):
            share = now[kind] / row[kind] - 1
            line += f"| {row[kind] / GIB:.2f} | {now[kind] / GIB:.2f} | {share:+.1%} "
        memory.append(line + "|")
    summaries = [
        f"| {name} | {_summary(off)} | {_summary(off[ahead])} |"
        for name, predicted in (("blind", blind), ("now", latest))
        for off in [predicted["step_s"] / measured["step_s"] - 1]
    ]
    text = _PAGE.read_text().format(
        times="\n".join(times),
        memory="\n".join(memory),
        summaries="\n".join(summaries),
        ahead=int(ahead.sum()),
    )
    path.write_text(text)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["predict", *cases]:
            predict(cases)
        case ["page", path]:
            page(Path(path))
        case _:
            sys.exit(__doc__)
