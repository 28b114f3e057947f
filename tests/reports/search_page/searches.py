"""A small search that was really simulated: a tiny model on two nodes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.samples import CLUSTER, GPU, MODEL, TRAINING
from trainscout.optimizer.certificate import Certificate
from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.reports.search_page.searched import Searched, SearchRequest
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.registry import SimulatorSpec, get_simulator

QUESTION = Question(MODEL, GPU, CLUSTER, TRAINING)
REQUEST = SearchRequest(
    "trainscout optimize model=tiny", "2026-01-02 03:04:05 UTC", "0123abcd", 7, "1.2"
)
LAUNCH = {"launch.sh": "#!/usr/bin/env bash\ntorchrun pretrain_gpt.py --seq-length 1024\n"}
RECIPES = (
    Recipe(),
    Recipe(zero_stage=0),
    Recipe(tp=2, sp=True),
    Recipe(pp=2, vpp=2, recompute="full", recompute_layers=1),
    Recipe(pp=4, micro_batch=2),
    Recipe(tp=4, pp=2, sp=True, tp_comm_overlap=True, overlap_grad_reduce=True),
    Recipe(tp=8, micro_batch=4, recompute="selective"),
)

PROOF = Certificate(
    objectives=("cost",), points=9, not_launchable={}, equal=0, equal_by_rule={}, recipes=9,
    out_of_memory=2, out_of_reach=3, simulated=4, failed=0, open=0, top_k=1, epsilon=0.0,
    proved=True, best=1.0, bound=1.0, gap=0.0,
)  # fmt: skip


@functools.cache
def simulated(recipe: Recipe) -> Prediction:
    return get_simulator("replay").simulate(QUESTION.job(recipe))


def fitting_trials() -> list[Trial]:
    """One trial a recipe, fastest first."""
    predictions = sorted(
        ((simulated(recipe), recipe) for recipe in RECIPES), key=lambda pair: pair[0].step_time_s
    )
    return [
        Trial(number, {}, recipe, "ok", values=(each.cost_of_run_usd,), prediction=each)
        for number, (each, recipe) in enumerate(predictions)
    ]


def other_trials(first: int) -> list[Trial]:
    """What did not come out ok, one of each kind; numbered from ``first``."""
    full = simulated(Recipe(tp=2, pp=2))
    memory = replace(full.memory, headroom_bytes=-3 * 2**30)
    missed = replace(full, fits=False, memory=memory)
    ends: tuple[tuple[Recipe, str, dict[str, Any]], ...] = (
        (Recipe(tp=2, pp=2), "oom", {"prediction": missed}),
        (
            Recipe(tp=1, pp=8),
            "pruned",
            {"rule": "memory_bound", "reason": "needs at least 99 of 76 GiB"},
        ),
        (Recipe(tp=8, pp=2), "pruned", {"rule": "time_bound", "reason": "no better"}),
        (Recipe(tp=2, pp=4), "pruned", {"rule": "same", "reason": "means the same"}),
        (Recipe(tp=3), "invalid", {"rule": "degrees_divide_world", "reason": "3 into 16"}),
        (Recipe(tp=4, pp=4), "failed", {"reason": "division by zero"}),
    )
    return [
        Trial(number, {}, recipe, status, **given)
        for number, (recipe, status, given) in enumerate(ends, start=first)
    ]


def result(fitting: Sequence[Trial], others: Sequence[Trial], **changes: Any) -> SearchResult:
    whole = SearchResult(
        trials=(*fitting, *others),
        best=tuple(fitting),
        pareto=tuple(fitting[:1]),
        objectives=("cost",),
        stopped="n_trials",
        wall_s=1.5,
        space_size=1000,
        notes=("space tiny: 1,000 points",),
    )
    return replace(whole, **changes)


def searched(**changes: Any) -> Searched:
    """A finished search in which seven recipes fit."""
    fitting = fitting_trials()
    found = result(fitting, other_trials(len(fitting)))
    whole = Searched(found, QUESTION, SimulatorSpec(), found.best, REQUEST, LAUNCH)
    return replace(whole, **changes)


def several_objectives(*names: str, count: int) -> Searched:
    """A finished search with two objectives, whose front has ``count`` recipes."""
    others = other_trials(len(RECIPES))
    fitting = [replace(trial, values=(1.0, 2.0)) for trial in fitting_trials()]
    front = tuple(fitting[:count])
    found = result(fitting, others, objectives=names, pareto=front)
    return searched(result=found, shown=front)


def nothing_fits(**changes: Any) -> Searched:
    """A finished search in which no recipe fits."""
    found = result((), other_trials(0), pareto=())
    return searched(
        result=found, shown=(), launch_files={}, relief=("A larger GPU helps.",), **changes
    )
