"""Kill a search at random moments, resume it each time, and compare with one left alone.

    python -m benchmarks.kill_and_resume --kills 20

Runs ``optimize.py`` as a user does; every kill is SIGKILL, in its start-up or while it writes.
After each one the store is read: a trial that was complete must stay. At the end counts what was
lost and what was simulated twice, and says whether the recipes and their order are those of the
search that was never killed.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import optuna

from trainscout.commands.entry_point import STORE
from trainscout.optimizer.storage.backends import open_storage

OPTIMIZE = Path(__file__).parents[1] / "optimize.py"
SEARCH = ["model=gpt13b", "cluster=a800_8", "training.global_batch_size=64", "tracking=none"]
SEARCH += ["search.patience=null", "search.batch_size=16"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--trials", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    moments = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as directory:
        whole, killed = Path(directory, "whole"), Path(directory, "killed")
        started_s = time.monotonic()
        run(whole, given.trials, resume=False).communicate()
        alone_s = time.monotonic() - started_s
        print(f"never killed: {alone_s:.1f} s, {len(complete(whole))} recipes stored", flush=True)
        whole_bytes = size_of(whole / STORE)
        kept: set[str] = set()
        lost = 0
        for kill in range(1, given.kills + 1):
            process = run(killed, given.trials, resume=(killed / STORE).exists())
            when = wait(process, killed / STORE, moments, whole_bytes / given.kills)
            over = process.poll() is not None
            process.kill()
            process.communicate()
            if over:
                print(f"kill {kill}: the search was over")
                break
            now = complete(killed)
            lost += len(kept - set(now))
            kept |= set(now)
            print(f"kill {kill} {when}: {len(now)} recipes stored", flush=True)
        _, stderr = run(killed, given.trials, resume=True).communicate()
        found = complete(killed)
        lost += len(kept - set(found))
        twice = sum(count - 1 for count in found.values())
        same = story(killed) == story(whole)
        print(f"lost {lost}, simulated twice {twice}, same search: {same}")
        if not same:
            print(stderr, file=sys.stderr)
    return 0 if same and not lost and not twice else 1


def run(directory: Path, trials: int, *, resume: bool) -> subprocess.Popen[str]:
    arguments = [f"hydra.run.dir={directory}", f"search.n_trials={trials}"]
    arguments.append(f"resume={str(resume).lower()}")
    return subprocess.Popen(
        [sys.executable, str(OPTIMIZE), *SEARCH, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait(
    process: subprocess.Popen[str], store: Path, moments: random.Random, growth_bytes: float
) -> str:
    """Wait for the moment to kill a process; says when that was.

    One in four falls into its start-up, the others within its writing about as many bytes more
    as are its share of the whole: in the middle of a line, a batch, or between them.
    """
    if moments.random() < 0.25:
        after_s = moments.uniform(0.0, 3.0)
        time.sleep(after_s)
        return f"{after_s:.1f} s after its start"
    before = size_of(store)
    enough = before + moments.uniform(0.0, 1.5) * growth_bytes
    while size_of(store) < enough and process.poll() is None:
        time.sleep(0.0005)
    return f"{size_of(store) - before:,} bytes further"


def size_of(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def complete(directory: Path) -> Counter[str]:
    """How often each recipe is stored as simulated."""
    if not (directory / STORE).exists():
        return Counter()
    storage = open_storage(str(directory / STORE))
    names = [n for n in optuna.get_all_study_names(storage) if not n.endswith("-claims")]
    trials = [
        trial
        for name in names
        for trial in optuna.load_study(storage=storage, study_name=name).get_trials(deepcopy=False)
    ]
    return Counter(
        json.dumps(t.user_attrs["recipe"], sort_keys=True)
        for t in trials
        if t.state == optuna.trial.TrialState.COMPLETE
    )


def story(directory: Path) -> tuple[list[dict[str, str]], str]:
    """Every trial but for the seconds it took, and the best recipes."""
    rows = list(csv.DictReader((directory / "trials.csv").open()))
    for row in rows:
        row.pop("duration_s")
    return rows, (directory / "top_recipes.json").read_text()


if __name__ == "__main__":
    sys.exit(main())
