"""Steps whose backward passes are split: their memory, parts and pictures agree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulators.jobs import MOE, TINY, make_job
from trainscout.reports.search_page.page_data import shown_micro_batches
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.schedules import SCHEDULES
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.replay.memory_timeline import memory_timeline
from trainscout.simulators.predictor.replay.pass_timeline import passes_of
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.replay.step_program import step_program

SPLIT = [name for name, schedule in SCHEDULES.items() if schedule.splits_backward]


def job_of(schedule: str, **recipe: object) -> Job:
    vpp = 2 if SCHEDULES[schedule].ends_meet else 1
    shape = {"pp": 8, "vpp": vpp, "schedule": schedule, "overlap_grad_reduce": True}
    model = replace(TINY, num_layers=16)
    return make_job(model, nodes=8, gpus_per_node=2, batch=64, **{**shape, **recipe})


@pytest.mark.parametrize("schedule", SPLIT)
def test_a_prediction_agrees_with_its_pictures(schedule: str) -> None:
    job = job_of(schedule)
    assert why_invalid(job) is None
    predicted = ReplaySimulator().without_error_bar(job)
    assert sum(predicted.breakdown_s.values()) == pytest.approx(predicted.step_time_s)
    passes = passes_of(step_program(job))
    # Without waiting for each other, stages end later than the next step begins.
    assert passes.step_time_s >= predicted.step_time_s * (1 - 1e-9)
    if not SCHEDULES[schedule].unsynchronised:
        assert passes.step_time_s == pytest.approx(predicted.step_time_s)
    held = memory_timeline(job, passes).allocated_bytes.max()
    assert held == predicted.memory.peak_allocated_bytes
    shown = shown_micro_batches(job)
    assert passes_of(step_program(job, shown)).micro_batches == shown <= job.num_micro_batches


def test_zero_bubble_takes_less_time_and_v_half_less_memory() -> None:
    found = {
        name: ReplaySimulator().without_error_bar(job_of(name))
        for name in ("1f1b", "zb-h1", "zb-v", "v-half")
    }
    held = {
        name: max(stage.kind["activations"] for stage in each.memory.per_stage)
        for name, each in found.items()
    }
    assert held["v-half"] < 0.75 * held["zb-v"]
    bubbles = {name: each.breakdown_s["bubble"] / each.step_time_s for name, each in found.items()}
    assert bubbles["zb-h1"] < bubbles["1f1b"]


def test_both_ways_hold_the_model_twice() -> None:
    model = replace(TINY, num_layers=16, tied_embeddings=False)
    shape = {"nodes": 8, "gpus_per_node": 2, "batch": 64, "pp": 8, "zero_stage": 0}
    once, twice = (
        ReplaySimulator().without_error_bar(make_job(model, schedule=name, vpp=vpp, **shape))
        for name, vpp in (("zb-h1", 1), ("dualpipe", 2))
    )
    held = [
        sum(stage.kind["parameters"] for stage in each.memory.per_stage) for each in (once, twice)
    ]
    assert held[1] == 2 * held[0]


def test_exchanges_of_experts_hide_under_both_ways() -> None:
    shape = {"pp": 4, "vpp": 2, "ep": 2, "schedule": "dualpipe"}
    model = replace(MOE, num_layers=16)
    alone, beside = (
        ReplaySimulator().without_error_bar(
            make_job(
                model,
                nodes=4,
                gpus_per_node=2,
                batch=32,
                overlap_moe_expert_parallel_comm=overlapped,
                **shape,
            )
        )
        for overlapped in (False, True)
    )
    hidden, exposed = (each.breakdown_s.get("ep_communication", 0) for each in (beside, alone))
    # What runs before and after both directions do exchanges in the open.
    assert 0.1 * exposed < hidden < 0.8 * exposed
    assert sum(beside.breakdown_s.values()) == pytest.approx(beside.step_time_s)
