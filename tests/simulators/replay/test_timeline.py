"""The operation timeline against the block-level replay it unrolls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulators.errors import InputError
from simulators.framework import Framework
from simulators.job import Job, Recipe, Training
from simulators.replay.simulator import ReplaySimulator
from simulators.replay.timeline import (
    COMPUTE,
    DATA_PARALLEL,
    HOST,
    NO_MICRO_BATCH,
    STREAMS,
    operation_timeline,
)
from simulators.validity import check_job
from tests.samples import CLUSTER, GPU, MODEL

# Wide enough that kernels outlast their launches: the host then never holds the device back.
WIDE = replace(MODEL, hidden_size=8192, num_heads=64, ffn_hidden_size=32768, sequence_length=4096)
RECIPES = {
    "one stage": Recipe(tp=8, sp=True),
    "pipeline": Recipe(tp=4, pp=4, sp=True),
    "interleaved": Recipe(tp=4, pp=4, vpp=2, sp=True),
    "overlapped": Recipe(tp=4, pp=2, sp=True, overlap_grad_reduce=True, overlap_param_gather=True),
    "fsdp": Recipe(tp=4, zero_stage=3, sp=True),
    "recompute": Recipe(tp=4, pp=2, sp=True, recompute="full"),
}


def wide_job(recipe: Recipe) -> Job:
    question = Job(WIDE, GPU, CLUSTER, Training(global_batch_size=32, tokens=1e9), recipe)
    check_job(question)
    return question


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_agrees_with_the_block_level_replay(recipe: Recipe) -> None:
    question = wide_job(recipe)
    expected = ReplaySimulator().simulate(question).step_time_s
    timeline = operation_timeline(question)
    # What differs is the launches at the start of a pass, which blocks do not see.
    assert timeline.step_time_s == pytest.approx(expected, rel=2e-3)
    assert timeline.step_time_s >= expected * (1 - 1e-3)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_a_stream_runs_one_operation_at_a_time(recipe: Recipe) -> None:
    timeline = operation_timeline(wide_job(recipe), micro_batches=4)
    for stage in range(recipe.pp):
        for stream in range(len(STREAMS)):
            lane = (timeline.stage == stage) & (timeline.stream == stream)
            start, end = timeline.start_s[lane], timeline.end_s[lane]
            order = np.argsort(start, kind="stable")
            assert (start[order][1:] >= end[order][:-1] - 1e-12).all()


def test_no_operation_precedes_its_launch() -> None:
    timeline = operation_timeline(wide_job(RECIPES["one stage"]), micro_batches=1)
    launches = timeline.end_s[(timeline.stream == HOST)]
    device = timeline.start_s[(timeline.stream != HOST) & (timeline.stream != DATA_PARALLEL)]
    assert len(launches) == len(device)
    assert (np.sort(device) >= np.sort(launches) - 1e-12).all()


def test_a_slow_host_holds_the_device_back() -> None:
    question = wide_job(RECIPES["one stage"])
    fast = operation_timeline(question, micro_batches=1)
    slow_host = replace(question, framework=Framework(host_launch_s=0.01))
    slow = operation_timeline(slow_host, micro_batches=1)
    launches = float((slow.end_s - slow.start_s)[slow.stream == HOST].sum())
    assert slow.step_time_s > fast.step_time_s
    assert slow.step_time_s >= launches


def test_the_step_end_belongs_to_no_micro_batch() -> None:
    timeline = operation_timeline(wide_job(RECIPES["pipeline"]), micro_batches=4)
    names = np.array(timeline.names)[timeline.name]
    update = (names == "update") & (timeline.stream == COMPUTE)
    assert update.sum() == 4
    assert (timeline.micro_batch[update] == NO_MICRO_BATCH).all()
    assert set(timeline.micro_batch[names == "qkv_fwd"].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("micro_batches", [0, 3, 1000])
def test_refuses_micro_batches_the_schedule_cannot_run(micro_batches: int) -> None:
    with pytest.raises(InputError, match=r"timeline\.micro_batches"):
        operation_timeline(wide_job(RECIPES["interleaved"]), micro_batches)
