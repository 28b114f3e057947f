"""What whole commands cost: ``python -m benchmarks.commands TOPIC`` prints a Markdown table.

CPU seconds (user and system) of the command and all that it starts, beside the wall clock, which
other work on the machine moves; the most memory that one process of it held; what it wrote. Every
command starts in an empty folder, and from an empty cache unless its label says otherwise.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_GPT = "simulate model=gpt175b cluster=h800_96 recipe.tp=8 recipe.pp=12 recipe.sp=true"
_BIG = (
    "simulate model=gpt175b cluster=h100_8192 training.global_batch_size=4096 recipe.tp=8 "
    "recipe.pp=16 recipe.sp=true recipe.overlap_grad_reduce=true"
)
_RANKS = str(list(range(16))).replace(" ", "")
_EXPERTS = (
    "simulate model=mixtral_8x7b cluster=h100_64 training.global_batch_size=512 recipe.tp=2 "
    "recipe.pp=4 recipe.ep=8 recipe.sp=true"
)
_SCRIPT = f"-- {ROOT / 'examples/gpt2.py'} --size small --steps 3"
_LIVE = "live --world-size 8 --host"
_PRELOAD = "--preload transformers.models.gpt2.modeling_gpt2,torch.nn.parallel,torch.optim"
CACHED = "from the cache"
TOPICS: dict[str, dict[str, str]] = {
    "timeline": {
        "gpt175b, 96 GPUs, no timeline": _GPT,
        "the same, Perfetto": f"{_GPT} timeline.file=step.json",
        "the same, its first 16 ranks": f"{_GPT} timeline.file=step.json timeline.ranks={_RANKS}",
        "the same, Chakra": f"{_GPT} timeline.chakra=et",
        "gpt175b, 96 GPUs, VPP 8": f"{_GPT} recipe.vpp=8 timeline.file=step.json",
        "mixtral_8x7b, 64 GPUs, EP 8": f"{_EXPERTS} timeline.file=step.json",
    },
    "traced": {
        "gpt175b, 96 GPUs, nothing cached": f"{_GPT} simulator=traced",
        f"gpt175b, 96 GPUs, {CACHED}": f"{_GPT} simulator=traced",
        "gpt175b, 8,192 GPUs, nothing cached": f"{_BIG} simulator=traced",
    },
    "live": {
        "one rank traced": f"run --world-size 8 --rank 0 --no-check --output run {_SCRIPT}",
        "8 ranks live": f"{_LIVE} declared {_PRELOAD} {_SCRIPT}",
        "nothing preloaded": f"{_LIVE} declared {_SCRIPT}",
        "shared links": f"{_LIVE} declared --network flow {_PRELOAD} {_SCRIPT}",
        "`--host cpu`": f"{_LIVE} cpu {_PRELOAD} {_SCRIPT}",
    },
}


@dataclass(frozen=True)
class Cost:
    """What one command took, and what it printed."""

    cpu_s: float
    wall_s: float
    peak_bytes: int
    out: str


def cost_of(
    words: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> Cost:
    """Run a command to its end in a folder.

    Raises:
        CalledProcessError: when it fails.
    """
    began_s = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        running = subprocess.Popen(words, cwd=folder, env=environment, stdout=out)
        _, status, used = os.wait4(running.pid, 0)
        out.seek(0)
        shown = out.read()
    running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, list(words), shown)
    wall_s = time.perf_counter() - began_s
    return Cost(used.ru_utime + used.ru_stime, wall_s, used.ru_maxrss << 10, shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topic", choices=TOPICS)
    asked = parser.parse_args()
    print("| command | CPU s | wall s | memory, MB | written, MB |")
    print("|---|---:|---:|---:|---:|")
    for label, command in TOPICS[asked.topic].items():
        words = [sys.executable, "-m", "trainscout", *shlex.split(command)]
        with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "TRAINSCOUT_CACHE": cache, "PYTHONPATH": str(ROOT)}
            if CACHED in label:
                cost_of(words, Path(folder), environment)
            cost = cost_of(words, Path(folder), environment)
            files = [path for path in Path(folder).rglob("*") if path.is_file()]
            written = sum(path.stat().st_size for path in files)
        figures = f"{cost.cpu_s:.1f} | {cost.wall_s:.1f} | {cost.peak_bytes / 1e6:.0f}"
        print(f"| {label} | {figures} | {written / 1e6:.1f} |", flush=True)


if __name__ == "__main__":
    main()
