"""Cells and answers without searches."""

from __future__ import annotations

from dataclasses import replace

from tests.optimizer.fake_simulator import FAKE, SPACE, toy_question
from trainscout.optimizer.options import SearchOptions
from trainscout.planning.answer import Answer, Best
from trainscout.planning.cells import Cell, Declarations, SearchSettings
from trainscout.planning.goodput import Goodput
from trainscout.planning.points import Point, make_point
from trainscout.planning.study import Study
from trainscout.simulators.predictor.question.framework import UNDECLARED
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.registry import SimulatorSpec

SETTINGS = SearchSettings(
    SPACE,
    SearchOptions(sampler="grid", pruning=(), top_k=1, n_trials=None, patience=None),
    SimulatorSpec(FAKE),
    0,
)

TRAINING = Training(64, 1e12)
STUDY = Study("toy", ("small",), ("here",), TRAINING, num_gpus=(8, 16, 32))


def declarations() -> Declarations:
    """One model; cluster ``here``, and ``there`` with other GPUs at twice the price."""
    asked = toy_question()
    gpu = replace(asked.gpu, name="other", price_usd_per_hour=4.0)
    return Declarations(
        {"small": asked.model},
        {"here": (asked.cluster, asked.gpu), "there": (asked.cluster, gpu)},
        UNDECLARED,
    )


def cell(num_gpus: int = 16, cluster: str = "here", nic_gbps: float = 400.0) -> Cell:
    asked = toy_question(num_nodes=num_gpus // 8)
    kept, gpu = declarations().clusters[cluster]
    kept = replace(kept, num_nodes=num_gpus // 8, nic_gbps=nic_gbps)
    return Cell("small", cluster, replace(asked, gpu=gpu, cluster=kept, training=TRAINING))


def best(step_time_s: float = 1.0, pp: int = 1, micro_batches: int = 8, **parts: float) -> Best:
    return Best(
        recipe=Recipe(pp=pp),
        dp=8,
        micro_batches=micro_batches,
        step_time_s=step_time_s,
        interval_s=(0.9 * step_time_s, 1.2 * step_time_s),
        tokens_per_s=64 * 2048 / step_time_s,
        mfu=0.4,
        breakdown_s=parts or {"compute": step_time_s},
        peak_reserved_bytes=2**35,
        needed_bytes=2**35 + 2**30,
        capacity_bytes=2**36,
        evidence_share={"fitted": 1.0},
        estimated_operations=("softmax",),
        assumptions=("a flat network",),
    )


def answer(step_time_s: float = 1.0) -> Answer:
    return Answer("fits", best(step_time_s), None, "proved", True, 3, 0.1)


def point(
    num_gpus: int = 16,
    step_time_s: float = 1.0,
    cluster: str = "here",
    share: float = 1.0,
    pp: int = 1,
    micro_batches: int = 8,
    **parts: float,
) -> Point:
    found = best(step_time_s, pp, micro_batches, **parts)
    return make_point(cell(num_gpus, cluster), found, Goodput(share))
