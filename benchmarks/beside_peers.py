"""CPU seconds of one recipe beside Calculon and SimuMax, in turn and on one machine.

    python -m benchmarks.beside_peers --calculon CLONE --simumax CLONE [--repeat N]

Every one predicts GPT-3 175B on 96 GPUs, TP 8 x PP 12, micro-batches of 1, from its own clone.
*Again* is one more prediction in a running process (the median of 1,000, SimuMax's of 3), *cold* a
process of its own. Nobody listens to Calculon's debug messages.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from benchmarks.commands import ROOT, cost_of
from trainscout.simulators.predictor.io.yaml_files import read_yaml

_PROGRAMS = read_yaml(Path(__file__).with_suffix(".yaml"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calculon", type=Path, required=True, help="folder of its repository")
    parser.add_argument("--simumax", type=Path, required=True, help="folder of its repository")
    parser.add_argument("--repeat", type=int, default=5, help="rounds; least of cold, median")
    asked = parser.parse_args()
    programs = {
        "Trainscout": (ROOT, 1000),
        "Calculon": (asked.calculon, 1000),
        "SimuMax": (asked.simumax, 3),
    }
    again: dict[str, list[float]] = {name: [] for name in programs}
    cold: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(asked.repeat):
        for name, (folder, repeat) in programs.items():
            text = _PROGRAMS["timed"] + _PROGRAMS[name].replace("{repeat}", str(repeat))
            timed = cost_of([sys.executable, "-c", text], folder)
            again[name].append(float(timed.out.split()[-1]))
            once = [sys.executable, "-m", "trainscout", "simulate", "model=gpt175b"]
            once += ["cluster=h800_96", "recipe.tp=8", "recipe.pp=12", "recipe.sp=true"]
            text = _PROGRAMS["once"] + _PROGRAMS[name].replace("{repeat}", "1")
            words = once if name == "Trainscout" else [sys.executable, "-c", text]
            cold[name].append(cost_of(words, folder).cpu_s)
    print("| | again, ms | cold, CPU s |")
    print("|---|---:|---:|")
    for name in programs:
        print(f"| {name} | {statistics.median(again[name]):.1f} | {min(cold[name]):.2f} |")


if __name__ == "__main__":
    main()
