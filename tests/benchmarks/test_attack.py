"""A slice of every attack (``python -m benchmarks.attack``), small enough for each run."""

import importlib

import pytest
from hypothesis import settings

from benchmarks.attack import files, jobs, mutations

SLICE = {
    "jobs": 60,
    "mutations": 7,
    "mistakes": 20,
    # The fifth is searched by two and eight workers, too, which take ten seconds to start.
    "searches": 1 if settings.default.max_examples < 100 else 5,
    "kills": 4,
    "stores": 6,
    "files": 200,
}


@pytest.mark.parametrize("kind", SLICE)
def test_nothing_is_wrong(kind):
    assert importlib.import_module(f"benchmarks.attack.{kind}").attack(1, SLICE[kind])[1] == []


def test_attacks_find_what_is_wrong(monkeypatch):
    """Each would notice: a step below its bound, an answer to wrong input, an exception."""
    job = next(jobs.jobs(jobs.random.Random(0)))
    good = jobs.ReplaySimulator().simulate(job)
    assert jobs.problems(job, good) == []
    fast = jobs.replace(good, step_time_s=good.step_time_s / 1e3)
    assert any("below its bound" in each for each in jobs.problems(job, fast))
    answered = mutations.Ended(0, "", "", 0.0)
    assert mutations.problems("recipe.tp=-1", answered, [])
    crashed = mutations.Ended(1, "", "internal failure: KeyError", 0.0)
    assert len(mutations.problems("recipe.tp=-1", crashed, ["outputs"])) == 3
    monkeypatch.setitem(files.SEEDS, "any.yaml", (b"a", lambda path: 1 / 0))
    assert any("ZeroDivisionError" in each for each in files.attack(0, 60)[1])
