"""Small made-up jobs, predictions and searches for tests of what people see.

The figures are arbitrary round numbers: tests check how they are shown, not what they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.optimizer.trial import Choices, SearchResult, Trial
from trainscout.simulators.predictor.answer.prediction import Memory, Prediction, StageMemory
from trainscout.simulators.predictor.memory.bands import FITS, NO
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training

GIB = 2**30

MODEL = Model(
    name="tiny",
    num_layers=8,
    hidden_size=1024,
    num_heads=16,
    ffn_hidden_size=4096,
    vocab_size=50257,
    sequence_length=1024,
    source="made up",
)
MOE_MODEL = replace(
    MODEL,
    name="tiny_moe",
    num_query_groups=4,
    head_dim=128,
    gated_mlp=True,
    normalization="rmsnorm",
    position="rope",
    linear_bias=False,
    qkv_bias=False,
    dropout=False,
    tied_embeddings=False,
    moe=Moe(num_experts=8, top_k=2, ffn_hidden_size=512, num_dense_layers=1),
)
ARCHITECTURES = load_catalogue().architectures
GPU = Gpu(
    name="h100",
    architecture=ARCHITECTURES["hopper"],
    compute_capability=9.0,
    sms=132,
    peak_flops={"bf16": 989.4e12, "fp8": 1978.9e12, "fp16": 989.4e12, "tf32": 494.7e12},
    memory_bytes=80 * GIB,
    memory_bandwidth_bytes_per_s=3350e9,
    l2_bytes=50 * 2**20,
    nvlink_links=18,
    nvlink_bytes_per_s=450e9,
    pcie_bytes_per_s=64e9,
    price_usd_per_hour=2.0,
)
CLUSTER = Cluster(
    name="pair",
    num_nodes=2,
    gpus_per_node=8,
    nics_per_node=8,
    nic_gbps=400,
    fabric="infiniband",
    source="made up",
    oversubscription=1,
)
TRAINING = Training(global_batch_size=64, tokens=1e9)


def job_of(recipe: Recipe) -> Job:
    return Job(MODEL, GPU, CLUSTER, TRAINING, recipe)


def moe_job_of(recipe: Recipe) -> Job:
    return Job(MOE_MODEL, GPU, CLUSTER, TRAINING, recipe)


def prediction(step_time_s: float = 2.0, headroom_gib: float = 10.0, **parts: float) -> Prediction:
    """A prediction whose breakdown is ``parts`` plus the compute that is left over."""
    breakdown = {**parts, "compute": step_time_s - sum(parts.values())}
    capacity = 76 * GIB
    reserved = capacity - int(headroom_gib * GIB)
    stages = tuple(
        StageMemory(stage, {"parameters": 2 * GIB, "activations": GIB}, reserved - GIB, reserved)
        for stage in range(2)
    )
    fits = headroom_gib >= 0
    verdict = (1.0, FITS) if fits else (0.0, NO)
    tokens_per_s = TRAINING.global_batch_size * MODEL.sequence_length / step_time_s
    return Prediction(
        step_time_s=step_time_s,
        mfu=0.5,
        mfu_causal=0.49,
        hfu=0.6,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / 16,
        cost_per_step_usd=0.02,
        cost_per_billion_tokens_usd=300.0,
        cost_of_run_usd=1234.0,
        fits=fits,
        memory=Memory(
            reserved - GIB, reserved, capacity, capacity - reserved, 1, stages, *verdict
        ),
        breakdown_s=breakdown,
        critical_stage=1,
        evidence_share={"measured": 0.0, "fitted": 0.75, "estimated": 0.25},
        estimated_operations=("norm_fwd", "embedding"),
    )


def trial(number: int, recipe: Recipe, status: str = "ok", **given: Any) -> Trial:
    if status == "ok":
        given.setdefault("prediction", prediction())
        given.setdefault("values", (0.02,))
    return Trial(number, {"tp": recipe.tp}, recipe, status, **given)


def search_result(**changes: Any) -> SearchResult:
    """Seven trials of every status; the best is the tp=4 pp=2 recipe."""
    best = trial(0, Recipe(tp=4, pp=2, sp=True), prediction=prediction(2.0, bubble=0.1))
    second = trial(1, Recipe(tp=2, pp=4), prediction=prediction(2.5, bubble=0.6))
    others = (
        trial(2, Recipe(tp=1), "oom", prediction=prediction(1.0, -3.5)),
        trial(3, Recipe(tp=3), "invalid", rule="degrees_divide_world", reason="3 into 16"),
        trial(4, Recipe(tp=2), "pruned", rule="recompute_dominated", reason="known to be slower"),
        trial(5, Recipe(tp=1, pp=2), "failed", reason="ZeroDivisionError: division by zero"),
        trial(6, Recipe(tp=1, micro_batch=2), "oom", prediction=prediction(1.0, -1.25)),
    )
    whole = SearchResult(
        trials=(best, second, *others),
        best=(best, second),
        pareto=(best,),
        objectives=("cost",),
        stopped="n_trials",
        wall_s=1.5,
        space_size=1000,
        choices=Choices(layouts=(best, second)),
    )
    return replace(whole, **changes)
