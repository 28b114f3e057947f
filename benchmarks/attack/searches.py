"""Random small questions, searched in ways that must come to one answer: exact search and every
recipe simulated, and one, two and eight workers."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from benchmarks.attack.jobs import jobs
from trainscout.optimizer.asked import AskedSearch
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import ExecutorOptions, SearchOptions
from trainscout.optimizer.study import run_search
from trainscout.optimizer.trial import SearchResult
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.question import Question

_KNOBS: dict[str, dict[str, Any]] = {
    "tp": {"powers_of_two_up_to": "nvlink_domain"},
    "pp": {"divisors_of": ["num_layers", "num_gpus"]},
    "micro_batch": {"choices": [1, 2, 4, 8]},
}
_MORE: dict[str, dict[str, Any]] = {
    "vpp": {"choices": [1, 2, 4], "when": "pp > 1"},
    "sp": {"choices": [False, True], "when": "tp > 1"},
    "cp": {"choices": [1, 2]},
    "zero_stage": {"choices": [0, 1, 2, 3]},
    "recompute": {"choices": ["none", "selective", "full"]},
    "overlap_grad_reduce": {"choices": [False, True]},
    "tp_comm_overlap": {"choices": [False, True], "when": "tp > 1"},
    "schedule": {"choices": ["1f1b", "gpipe"]},
}
_MEASURES = ("cost", "step_time", "memory", "mfu")
_WORKERS_EVERY = 5


def attack(seed: int, count: int) -> tuple[int, list[str]]:
    """How many questions were searched, and where two ways differ, a line each."""
    chosen = random.Random(seed)
    wrong = []
    for number, job in zip(range(count), jobs(chosen), strict=False):
        more = chosen.sample(list(_MORE), 3)
        space = {"name": "random", "knobs": _KNOBS | {name: _MORE[name] for name in more}}
        names = tuple(chosen.sample(_MEASURES, chosen.choice([1, 1, 2])))
        question = _small(job)
        grid = _searched(question, space, names, "grid")
        ways = {"exact": _searched(question, space, names, "exact")}
        if number % _WORKERS_EVERY == _WORKERS_EVERY - 1:
            grid_by = {n: _searched(question, space, names, "grid", n) for n in (2, 8)}
            ways |= {f"{workers} workers": found for workers, found in grid_by.items()}
        wrong += [
            f"question {number}, seed {seed}: {way} differs on {names}, {sorted(more)}: {question}"
            for way, found in ways.items()
            if _answer(found, names) != _answer(grid, names)
        ]
    return count, wrong


def _small(job: Job) -> Question:
    """A question about a random job on at most 16 GPUs."""
    nodes = min(job.cluster.num_nodes, max(1, 16 // job.cluster.gpus_per_node))
    batch = min(job.training.global_batch_size, 64)
    training = replace(job.training, global_batch_size=batch, precision=job.precision)
    cluster = replace(job.cluster, num_nodes=nodes)
    return Question(job.model, job.gpu, cluster, training, job.framework)


def _searched(
    question: Question, space: dict[str, Any], names: tuple[str, ...], way: str, workers: int = 1
) -> SearchResult:
    options = SearchOptions(way, n_trials=None, patience=None, min_trials=0, pruning=())
    return run_search(
        AskedSearch(
            question,
            space,
            Objective(names),
            options,
            simulator="replay",
            executor=ExecutorOptions("serial" if workers == 1 else "loky", workers),
        )
    )


def _answer(found: SearchResult, names: tuple[str, ...]) -> list[object]:
    trials = found.best if len(names) == 1 else found.pareto
    return [(each.recipe, each.values) for each in trials]
