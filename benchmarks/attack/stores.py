"""Damaged stores: a search goes on with what is whole and comes to the same answer, or refuses."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from benchmarks.attack.files import mutated
from benchmarks.attack.kills import search
from trainscout.optimizer.trial import SearchResult
from trainscout.simulators.predictor.question.errors import InputError


def attack(seed: int, count: int) -> tuple[int, list[str]]:
    """What was wrong with ``count`` searches on damaged stores, a line each."""
    chosen = random.Random(seed)
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "whole.journal")
        search(whole)
        content, answer = whole.read_bytes(), _story(search(None))
        for number in range(count):
            store = Path(folder, f"{number}.journal")
            store.write_bytes(mutated(content, chosen))
            try:
                same = _story(search(store)) == answer
                problem = None if same else "another answer"
            except InputError:
                problem = None
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            if problem is not None:
                wrong.append(f"store {number} of seed {seed}: {problem}")
            store.unlink()
    return count, wrong


def _story(result: SearchResult) -> list[object]:
    return [(each.recipe, each.status, each.values) for each in result.trials]
