"""Replaying a few micro-batches gives the times of replaying all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.simulators.jobs import GPT175B, LLAMA, MOE, TINY, make_job
from tests.simulators.predictor.replay.conftest import Machine, Rates
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.replay.assemble import Assembler
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.replay.simulator import _evidence, _stage_parts
from trainscout.simulators.predictor.replay.steady import Step, replay_step
from trainscout.simulators.predictor.workload.megatron import build_workload


def step_of(job: Job, *, full: bool = False) -> Step:
    workload = build_workload(job)
    pricer = Pricer(job.gpu, job.cluster, job.framework, workload.communicators)
    return replay_step(job, Assembler(job, workload, pricer).assemble, full=full)


def agree(job: Job) -> None:
    short, full = step_of(job), step_of(job, full=True)
    assert full.simulated_micro_batches == job.num_micro_batches
    assert short.step_time_s == pytest.approx(full.step_time_s, rel=1e-9)
    for ours, theirs in zip(_stage_parts(short), _stage_parts(full), strict=True):
        assert theirs.sum() == pytest.approx(full.step_time_s, rel=1e-9)
        assert ours.sum() == pytest.approx(short.step_time_s, rel=1e-9)
        assert np.abs(ours - theirs).max() <= 1e-8 * full.step_time_s


FSDP = {"torch_wrappers": True}
LAYOUTS: dict[str, Any] = {
    "nodes": st.sampled_from([1, 2, 3, 6]),
    "batch": st.sampled_from([48, 96, 192, 384]),
    "tp": st.sampled_from([1, 2, 8]),
    "cp": st.sampled_from([1, 1, 2]),
    "ep": st.sampled_from([1, 1, 2, 4]),
    "micro_batch": st.sampled_from([1, 2]),
    "recompute": st.sampled_from(["none", "selective", "full"]),
    "zero_stage": st.sampled_from([0, 1, 1, 2, 3]),
    "overlap_grad_reduce": st.booleans(),
    "overlap_param_gather": st.booleans(),
    "training": st.sampled_from([{}, FSDP, {**FSDP, "sums_whole_grads": True}]),
}
PIPELINES = st.one_of(
    st.just({"pp": 1}),
    st.fixed_dictionaries(
        {"pp": st.sampled_from([2, 3, 4, 6]), "schedule": st.sampled_from(["1f1b", "gpipe"])},
        optional={"first_stage_layers": st.integers(1, 4), "last_stage_layers": st.integers(1, 4)},
    ),
    st.fixed_dictionaries({"pp": st.sampled_from([2, 3, 4]), "vpp": st.sampled_from([2, 3])}),
)


def valid_job(model: Model, pipeline: dict[str, Any], layout: dict[str, Any]) -> Job:
    sp = model.moe is not None and layout["tp"] > 1
    if pipeline["pp"] > 1:
        layout["zero_stage"] = min(layout["zero_stage"], 1)
    if layout["zero_stage"] == 0 or not layout["overlap_grad_reduce"]:
        layout["overlap_param_gather"] = False
    if model.moe is None:
        layout["ep"] = 1
    job = make_job(model, sp=sp, **pipeline, **layout)
    assume(why_invalid(job) is None)
    return job


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    model=st.sampled_from([TINY, LLAMA, MOE]),
    pipeline=PIPELINES,
    layout=st.fixed_dictionaries(LAYOUTS),
    rates=st.builds(
        Rates,
        memory_bytes_per_s=st.sampled_from([np.inf, 1e11]),
        wire_bytes_per_s=st.sampled_from([np.inf, 1e11, 1e10, 1e9, 1e8]),
        # From free to far longer than a pass.
        send_s=st.sampled_from([0.0, 1e-5, 1e-4, 1e-3, 1e-2]),
        slowdown=st.sampled_from([1.0, 1.3, 3.0]),
        launch_s=st.sampled_from([0.0, 1e-5]),
    ),
)
def test_on_any_machine(
    machine: Machine, model: Model, pipeline: dict[str, Any], layout: dict[str, Any], rates: Rates
) -> None:
    job = valid_job(model, pipeline, layout)
    machine(rates)
    agree(job)


@given(
    model=st.sampled_from([TINY, LLAMA, MOE]),
    pipeline=PIPELINES,
    layout=st.fixed_dictionaries(LAYOUTS),
)
def test_with_real_prices(model: Model, pipeline: dict[str, Any], layout: dict[str, Any]) -> None:
    agree(valid_job(model, pipeline, layout))


@pytest.mark.parametrize("vpp", [1, 2])
def test_on_a_published_layout(vpp: int) -> None:
    agree(make_job(GPT175B, nodes=12, batch=384, tp=8, pp=12, vpp=vpp, sp=True))


@pytest.mark.parametrize("recipe", [{"pp": 1}, {"pp": 4}, {"pp": 4, "vpp": 3}])
def test_cost_does_not_grow_with_replicas_or_micro_batches(recipe: dict[str, int]) -> None:
    def simulated(nodes: int, batch: int) -> tuple[int, int]:
        job = make_job(TINY, nodes=nodes, batch=batch, overlap_grad_reduce=True, **recipe)
        step = step_of(job)
        assert step.micro_batches == job.num_micro_batches
        return step.simulated_micro_batches, len(step.program.tasks.work)

    replicas = 8 // recipe["pp"]
    few = simulated(1, 128 * replicas)
    assert simulated(1, 2048 * replicas) == few
    assert simulated(64, 128 * 64 * replicas) == few
    assert few[0] < 128


@pytest.mark.parametrize(
    "recipe",
    [
        {"pp": 2, "zero_stage": 1},
        {"zero_stage": 2},
        {"zero_stage": 2, "overlap_param_gather": True},
        {"zero_stage": 3},
    ],
)
def test_evidence_weighs_what_was_not_replayed(recipe: dict[str, Any]) -> None:
    job = make_job(LLAMA, nodes=2, batch=1024, **recipe)
    workload = build_workload(job)
    pricer = Pricer(job.gpu, job.cluster, job.framework, workload.communicators)
    short, full = step_of(job), step_of(job, full=True)
    assert short.simulated_micro_batches < full.simulated_micro_batches
    shares, _ = _evidence(job, workload, pricer, short)
    expected, _ = _evidence(job, workload, pricer, full)
    assert shares == pytest.approx(expected, rel=1e-9)
