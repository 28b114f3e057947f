"""What live mode costs, and how far it is from replayed traces.

    python -m benchmarks.live [--steps 3] [--size small]

GPT-2 under DDP on 8 ranks: one traced alone, then all live, forked from one process that has
imported everything or nothing, over shared links, and with CPU time. A step's cost is the
difference between runs of different length, so that start-up drops out. Shares the machine with
whatever else runs: CPU seconds are the figures to read.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.virtual_cluster.execution import replay_ranks
from trainscout.simulators.virtual_cluster.traces.files import read_directory

ROOT = Path(__file__).parents[1]
SCRIPT = "examples/gpt2_ddp.py"
RANKS = 8
PRELOAD = "transformers.models.gpt2.modeling_gpt2,torch.nn.parallel,torch.optim"


@dataclass(frozen=True)
class Cost:
    """Wall and CPU seconds of one command, and what it printed."""

    wall_s: float
    cpu_s: float
    out: str
    told: str


def run(command: str, options: list[str], steps: int, size: str) -> Cost:
    """Run a command of ``emulation`` on the script."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.perf_counter()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trainscout", command),
            *("--world-size", str(RANKS), *options, "--", SCRIPT),
            *("--size", size, "--steps", str(steps)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{command} {' '.join(options)}: {done.stderr[-2000:]}")
    wall_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall_s, cpu_s, done.stdout, done.stderr)


def step_ms(cost: Cost) -> float:
    """The last step of rank 0 in the table of ranks."""
    row = re.search(r"^ *0 +\d+ +([\d.,]+)", cost.told, re.M)
    assert row is not None, cost.told
    return float(row[1].replace(",", ""))


def own_mib(cost: Cost) -> list[int]:
    """Memory that each rank shares with none, from the table of ranks."""
    rows = re.findall(r"^ *\d+ +\d+ .* ([\d,]+) *$", cost.told, re.M)
    return [int(row.replace(",", "")) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--size", default="small")
    given = parser.parse_args()
    few, many = given.steps, 2 * given.steps
    cluster, gpu = load_catalogue().machines("h800_96")
    with tempfile.TemporaryDirectory() as folder:
        one = ["--rank", "0", "--no-check", "--output", str(Path(folder) / "run")]
        traced = [run("run", one, steps, given.size) for steps in (few, many)]
        per_step = (traced[1].cpu_s - traced[0].cpu_s) / (many - few)
        print(f"one rank traced: {traced[0].cpu_s:.1f} CPU s, {per_step:.2f} a step", flush=True)
        preload = ["--preload", PRELOAD]
        settings = {
            "live": ["--host", "declared", *preload],
            "live, nothing preloaded": ["--host", "declared"],
            "live, shared links": ["--host", "declared", "--network", "flow", *preload],
            "live, CPU time": ["--host", "cpu", *preload],
        }
        for name, options in settings.items():
            traces = Path(folder) / name.replace(" ", "-")
            short = run("live", options, few, given.size)
            longer = run("live", [*options, "--traces", str(traces)], many, given.size)
            cost = (longer.cpu_s - short.cpu_s) / (many - few) / RANKS
            host = "traced" if "cpu" in options else "declared"
            replayed = replay_ranks(read_directory(traces), gpu, cluster, host=host)
            simulated, expected = step_ms(longer), 1e3 * replayed.step_time_s
            print(
                f"{name}: {short.cpu_s:.1f} CPU s ({short.wall_s:.1f} s), {cost:.2f} a step "
                f"and rank = {cost / per_step:.2f} x traced; {max(own_mib(short))} MiB a rank; "
                f"step {simulated:.3f} ms, replayed {expected:.3f} ms "
                f"({simulated / expected - 1:+.3%})",
                flush=True,
            )


if __name__ == "__main__":
    main()
