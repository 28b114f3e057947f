"""Searches killed outright at random moments and resumed: nothing lost, nothing twice."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
from collections import Counter
from pathlib import Path

import optuna

from benchmarks.attack.forked import run_forked
from tests.optimizer import toy_search
from trainscout.optimizer.storage.backends import damaged_records, open_storage
from trainscout.optimizer.trial import SearchResult


def attack(seed: int, count: int) -> tuple[int, list[str]]:
    """What was lost or doubled by ``count`` kills, a line each."""
    chosen = random.Random(seed)
    wrong: list[str] = []
    kills = 0
    while kills < count:
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder, "search.journal")
            kept: set[str] = set()
            while kills < count and _killed(store, chosen.uniform(0.02, 0.5)):
                kills += 1
                now = _stored(store)
                lost = kept - set(now)
                doubled = [recipe for recipe, times in now.items() if times > 1]
                wrong += [f"kill {kills} of seed {seed}: lost {recipe}" for recipe in lost]
                wrong += [f"kill {kills} of seed {seed}: doubled {each}" for each in doubled]
                kept = set(now)
    return count, wrong


def search(store: Path | None) -> SearchResult:
    """A search that goes on with what its store has."""
    kept = {"storage": store and str(store), "join": store is not None}
    return toy_search.search("random", batch_size=8, **kept)


def _killed(store: Path, after_s: float) -> bool:
    """Whether a search that is killed after some time was not over before."""

    def run() -> int:
        own = os.getpid()
        kill = threading.Timer(after_s, os.kill, (own, signal.SIGKILL))
        kill.daemon = True
        kill.start()
        search(store)
        return 0

    ended = run_forked(run, store.parent, 120.0)
    return ended.code == -signal.SIGKILL


def _stored(store: Path) -> Counter[str]:
    """How often each recipe is in a store."""
    if not store.exists():
        return Counter()
    storage = open_storage(str(store))
    assert damaged_records(storage) == 0
    found: Counter[str] = Counter()
    for name in optuna.get_all_study_names(storage):
        if not name.endswith("-claims"):
            trials = optuna.load_study(storage=storage, study_name=name).get_trials()
            found.update(str(trial.user_attrs["recipe"]) for trial in trials)
    return found
