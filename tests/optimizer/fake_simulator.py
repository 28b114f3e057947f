"""Analytic simulators in closed form: microseconds per recipe, one clear optimum."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from trainscout.conf.catalogue import load_catalogue
from trainscout.optimizer.trial import SearchResult
from trainscout.simulators.predictor.answer.prediction import Memory, Prediction, StageMemory
from trainscout.simulators.predictor.memory.bands import FITS, NO, TIGHT
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.training import Training

_PROBABILITIES = {FITS: 1.0, TIGHT: 0.5, NO: 0.0}
FAKE = "tests.optimizer.fake_simulator:FakeSimulator"


def toy_question(num_nodes: int = 2, batch: int = 64, memory_bytes: int = 80 * 2**30) -> Question:
    model = Model("toy", 8, 1024, 16, 4096, 32000, 2048, "made up")
    gpu = Gpu(
        "toy",
        load_catalogue().architectures["hopper"],
        9.0,
        132,
        {"bf16": 1e15},
        memory_bytes,
        3e12,
        2**25,
        18,
        4e11,
        6e10,
        2.0,
    )
    cluster = Cluster("toy", num_nodes, 8, 8, 400.0, "infiniband", "made up", oversubscription=1)
    return Question(model, gpu, cluster, Training(batch, 1e9))


def story(result: SearchResult) -> list[tuple[object, ...]]:
    """All of a search that must not depend on timing, or on who simulates."""
    return [(t.point, t.recipe, t.status, t.rule, t.values, t.prediction) for t in result.trials]


SPACE = {
    "name": "toy",
    "knobs": {
        "tp": {"powers_of_two_up_to": "nvlink_domain"},
        "pp": {"divisors_of": ["num_layers", "num_gpus"]},
        "vpp": {"choices": [1, 2, 4], "when": "pp > 1"},
        "micro_batch": {"choices": [1, 2, 4, 8]},
        "recompute": {"choices": ["none", "selective", "full"]},
        "sp": {"choices": [False, True], "when": "tp > 1"},
        "zero_stage": {"choices": [0, 1]},
    },
}


def memory_units(job: Job) -> float:
    """Footprint of the first stage in arbitrary units; falls with recompute, sp and zero."""
    recipe = job.recipe
    parameters = 40.0 / (recipe.tp * recipe.pp)
    optimizer = 160.0 / (recipe.tp * recipe.pp) / (job.dp if recipe.zero_stage else 1)
    kept = {"none": 6.0, "selective": 4.0, "full": 1.0}[recipe.recompute]
    shard = recipe.tp if recipe.sp else 1 + (recipe.tp - 1) / 2
    return parameters + optimizer + recipe.micro_batch * kept / shard


class FakeSimulator:
    """Compute / pipeline bubble / TP traffic / optimizer, each a one-line formula; up to ``tight``
    times the capacity may fit."""

    name = "fake"
    capacity_units = 40.0
    tight = 1.0

    def step_parts_s(self, job: Job) -> dict[str, float]:
        recipe = job.recipe
        micro_batches = job.num_micro_batches
        again = {"none": 1.0, "selective": 1.02, "full": 1.33}[recipe.recompute]
        per_micro_s = 0.01 * again * (recipe.micro_batch + 0.15) / (recipe.tp * recipe.pp)
        traffic_s = 0.0007 * (recipe.tp - 1) * recipe.micro_batch * (0.9 if recipe.sp else 1.0)
        shards = job.dp if recipe.zero_stage else 1
        return {
            "compute": micro_batches * per_micro_s,
            "tp_communication": micro_batches * traffic_s / recipe.pp,
            "bubble": (recipe.pp - 1) * per_micro_s / recipe.vpp,
            "optimizer": 0.004 / (recipe.tp * recipe.pp * shards),
            "dp_communication": 0.003 * (job.dp > 1) * (0.8 if recipe.zero_stage else 1.0),
        }

    def simulate(self, job: Job) -> Prediction:
        parts = self.step_parts_s(job)
        step_time_s = sum(parts.values())
        unit = 2**30
        used, capacity = int(memory_units(job) * unit), int(self.capacity_units * unit)
        stage = StageMemory(0, {"parameters": used}, used, used)
        band = FITS if used <= capacity else TIGHT if used <= self.tight * capacity else NO
        tokens_per_s = job.tokens_per_step / step_time_s
        cost = step_time_s * job.world_size * job.gpu.price_usd_per_hour / 3600
        return Prediction(
            step_time_s=step_time_s,
            mfu=0.004 / step_time_s,
            mfu_causal=0.003 / step_time_s,
            hfu=0.005 / step_time_s,
            tokens_per_s=tokens_per_s,
            tokens_per_s_per_gpu=tokens_per_s / job.world_size,
            cost_per_step_usd=cost,
            cost_per_billion_tokens_usd=cost * 1e9 / job.tokens_per_step,
            cost_of_run_usd=cost * job.training.tokens / job.tokens_per_step,
            fits=band == FITS,
            memory=Memory(
                used, used, capacity, capacity - used, 0, (stage,), _PROBABILITIES[band], band
            ),
            breakdown_s=parts,
            critical_stage=0,
            evidence_share={"estimated": 1.0},
            estimated_operations=("everything",),
        )


class SometimesFailing(FakeSimulator):
    """Raises for pp = 4."""

    def simulate(self, job: Job) -> Prediction:
        if job.recipe.pp == 4:
            raise RuntimeError("no route for pp=4")
        return super().simulate(job)


class NotANumber(FakeSimulator):
    """Predicts NaN for tp = 2."""

    def simulate(self, job: Job) -> Prediction:
        prediction = super().simulate(job)
        return replace(prediction, step_time_s=float("nan")) if job.recipe.tp == 2 else prediction


class KillsItsWorker(FakeSimulator):
    """Takes the whole process down for one recipe."""

    def simulate(self, job: Job) -> Prediction:
        if job.recipe.tp == 4 and job.recipe.pp == 2 and job.recipe.micro_batch == 2:
            os._exit(17)
        return super().simulate(job)


class KillsItsWorkerOnce(FakeSimulator):
    """Takes the whole process down while the file that a recipe names is not there."""

    def simulate(self, job: Job) -> Prediction:
        flag = job.recipe.recompute_modules
        if flag is not None and not Path(flag).exists():
            Path(flag).touch()
            os._exit(17)
        return super().simulate(job)


class Slow(FakeSimulator):
    """Long enough to be killed in the middle of."""

    def simulate(self, job: Job) -> Prediction:
        time.sleep(0.01)
        return super().simulate(job)


class Hangs(FakeSimulator):
    """Never answers for one recipe."""

    def simulate(self, job: Job) -> Prediction:
        if job.recipe.tp == 2 and job.recipe.pp == 2 and job.recipe.micro_batch == 1:
            time.sleep(3600)
        return super().simulate(job)
