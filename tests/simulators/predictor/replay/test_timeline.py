"""The operation timeline against the block-level replay it unrolls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.samples import CLUSTER, GPU, MODEL, MOE_MODEL
from tests.simulators.predictor.replay.conftest import Machine, Rates
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.replay.step_program import StepProgram, step_program
from trainscout.simulators.predictor.replay.timeline import (
    COMMUNICATION,
    COMPUTE,
    DATA_PARALLEL,
    HOST,
    NONE,
    PIPELINE,
    STREAMS,
    Timeline,
)
from trainscout.simulators.predictor.replay.unroll import unroll
from trainscout.simulators.predictor.workload.ir import Alloc, Block, Free, HostSync

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
    timeline = unroll(step_program(question))
    # What differs is the launches at the start of a pass, which blocks do not see.
    assert timeline.step_time_s == pytest.approx(expected, rel=2e-3)
    assert timeline.step_time_s >= expected * (1 - 1e-3)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_a_stream_runs_one_operation_at_a_time(recipe: Recipe) -> None:
    timeline = unroll(step_program(wide_job(recipe), micro_batches=4))
    for stage in range(recipe.pp):
        for stream in range(len(STREAMS)):
            lane = (timeline.stage == stage) & (timeline.stream == stream)
            start, end = timeline.start_s[lane], timeline.end_s[lane]
            order = np.argsort(start, kind="stable")
            assert (start[order][1:] >= end[order][:-1] - 1e-12).all()


def test_no_operation_precedes_its_launch() -> None:
    timeline = unroll(step_program(wide_job(RECIPES["one stage"]), micro_batches=1))
    launches = timeline.end_s[(timeline.stream == HOST)]
    device = np.flatnonzero((timeline.stream == COMPUTE) | (timeline.stream == COMMUNICATION))
    assert len(launches) == len(device)
    by = timeline.launched_by[device]
    assert len(set(by.tolist())) == len(by)
    assert (timeline.stream[by] == HOST).all()
    assert (timeline.start_s[device] >= timeline.end_s[by] - 1e-12).all()


def test_a_slow_host_holds_the_device_back() -> None:
    question = wide_job(RECIPES["one stage"])
    fast = unroll(step_program(question, micro_batches=1))
    slow_host = replace(question, framework=Framework(host_launch_s=0.01))
    slow = unroll(step_program(slow_host, micro_batches=1))
    launches = float((slow.end_s - slow.start_s)[slow.stream == HOST].sum())
    assert slow.step_time_s > fast.step_time_s
    assert slow.step_time_s >= launches


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_only_a_blocking_transfer_makes_the_host_wait(recipe: Recipe) -> None:
    timeline = unroll(step_program(wide_job(recipe), micro_batches=4))
    for stage in range(recipe.pp):
        rows = np.flatnonzero((timeline.stage == stage) & (timeline.launched_by >= 0))
        rows = rows[timeline.micro_batch[rows] != NONE]
        passes = timeline.block_pass[timeline.block[rows]]
        launches = timeline.launched_by[rows]
        waits = timeline.start_s[launches][1:] - timeline.end_s[launches][:-1]
        within = passes[1:] == passes[:-1]
        # Nothing inside a pass stops it, data-parallel communication least of all.
        assert waits[within] == pytest.approx(0.0, abs=1e-12)
        if recipe.pp > 1 and recipe.vpp == 1:
            assert (waits[~within] > 0.0).all()
        else:
            assert waits[~within] == pytest.approx(0.0, abs=1e-12)


def test_the_host_waits_for_the_device_where_it_reads_from_it() -> None:
    question = Job(MOE_MODEL, GPU, CLUSTER, Training(32, 1e9), Recipe(tp=2, ep=4, sp=True))
    check_job(question)
    step = step_program(question, micro_batches=2)
    timeline = unroll(step)
    run = next(
        run
        for run in step.workload.stages[0].chunks[0].runs
        if any(isinstance(op, HostSync) for op in run.forward.ops)
    )
    at = next(i for i, op in enumerate(run.forward.ops) if isinstance(op, HostSync))
    device = [op for op in run.forward.ops[at:] if not isinstance(op, Alloc | Free | HostSync)]
    named = np.array(timeline.names)[timeline.operation] == device[0].name
    of_block = np.array(timeline.block_name)[timeline.block] == run.forward.name
    rows = np.flatnonzero(named & of_block & (timeline.stream != HOST))
    assert len(rows) == 2 * run.count
    for row in rows.tolist():
        earlier = (timeline.block == timeline.block[row]) & (np.arange(len(named)) < row)
        launched_s = timeline.start_s[timeline.launched_by[row]]
        assert launched_s >= timeline.end_s[earlier].max() - 1e-12


def test_the_step_end_belongs_to_no_micro_batch() -> None:
    timeline = unroll(step_program(wide_job(RECIPES["pipeline"]), micro_batches=4))
    names = np.array(timeline.names)[timeline.operation]
    update = (names == "update") & (timeline.stream == COMPUTE)
    assert update.sum() == 4
    assert (timeline.micro_batch[update] == NONE).all()
    assert set(timeline.micro_batch[names == "qkv_fwd"].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("micro_batches", [0, 3, 1000])
def test_refuses_micro_batches_the_schedule_cannot_run(micro_batches: int) -> None:
    with pytest.raises(InputError, match=r"timeline\.micro_batches"):
        unroll(step_program(wide_job(RECIPES["interleaved"]), micro_batches))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_streams_do_the_priced_work_no_more_and_no_less(recipe: Recipe, machine: Machine) -> None:
    machine(Rates(wire_bytes_per_s=1e12, memory_bytes_per_s=1e13, send_s=1e-3))
    question = wide_job(recipe)
    step = step_program(question, micro_batches=4)
    timeline = unroll(step)
    seconds = timeline.end_s - timeline.start_s
    for stage in range(recipe.pp):
        whole = step.workload.stages[stage]
        blocks = [
            block
            for chunk in whole.chunks
            for run in chunk.runs
            for block in (run.forward, run.backward) * run.count * 4
        ]
        kernels = communication = 0.0
        # What is not launched beside passes runs between them.
        for block in [*blocks, *_step_end(step, stage)]:
            for priced in step.pricer.operations(block):
                if priced.communication is None:
                    kernels += priced.seconds
                else:
                    communication += priced.seconds
        here = timeline.stage == stage
        on = {stream: seconds[here & (timeline.stream == stream)].sum() for stream in range(5)}
        assert on[COMPUTE] == pytest.approx(kernels)
        assert on[COMMUNICATION] == pytest.approx(communication)
        rank = step.program.tasks.stream_rank[step.program.tasks.task_streams]
        beside = step.program.structure.communication & (rank == stage)
        assert on[DATA_PARALLEL] == pytest.approx(step.program.tasks.work[beside].sum())


def _step_end(step: StepProgram, stage: int) -> list[Block]:
    tasks = step.program.structure.compute_tasks[stage][step.program.structure.pass_tasks[stage] :]
    return [step.program.blocks[task] for task in tasks.tolist()]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_nothing_starts_before_what_it_waits_for(recipe: Recipe) -> None:
    timeline = unroll(step_program(wide_job(recipe), micro_batches=4))
    before, after = timeline.edges
    assert (timeline.start_s[after] >= timeline.end_s[before] - 1e-9).all()
    # Only what was sent joins stages.
    across = timeline.stage[before] != timeline.stage[after]
    assert (timeline.stream[before[across]] == PIPELINE).all()


@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("vpp", [1, 2])
def test_every_pass_sends_to_the_stage_that_goes_on(pp: int, vpp: int) -> None:
    vpp = vpp if pp > 1 else 1
    timeline = unroll(step_program(wide_job(Recipe(tp=4, pp=pp, vpp=vpp)), micro_batches=4))
    rows, to_stage = timeline.sends
    # Forward and backward, over every boundary between chunks, for each micro-batch.
    assert len(rows) == 2 * 4 * (pp * vpp - 1)
    assert set(rows.tolist()) == set(np.flatnonzero(timeline.stream == PIPELINE).tolist())
    assert (to_stage != timeline.stage[rows]).all()
    before, after = timeline.edges
    for row, stage in zip(rows.tolist(), to_stage.tolist(), strict=True):
        needs = after[before == row]
        assert (timeline.stage[needs] == stage).any()
        same = timeline.micro_batch[needs[timeline.stage[needs] == stage]]
        assert (same == timeline.micro_batch[row]).all()


def test_transfers_beside_compute_take_their_time(machine: Machine) -> None:
    machine(Rates(send_s=0.5))
    timeline = unroll(step_program(wide_job(RECIPES["interleaved"]), micro_batches=4))
    rows = timeline.sends[0]
    assert (timeline.end_s - timeline.start_s)[rows] == pytest.approx(0.5)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_every_kernel_is_part_of_a_pass_of_its_stage(recipe: Recipe) -> None:
    timeline = unroll(step_program(wide_job(recipe), micro_batches=4))
    rows = np.flatnonzero((timeline.stream == COMPUTE) | (timeline.stream == COMMUNICATION))
    passes = timeline.block_pass[timeline.block[rows]]
    assert (timeline.passes.stage[passes] == timeline.stage[rows]).all()
    assert (timeline.passes.micro_batch[passes] == timeline.micro_batch[rows]).all()
    assert timeline.passes.name.count("forward") == 4 * recipe.pp * recipe.vpp


def test_same_job_same_timeline() -> None:
    first, second = (unroll(step_program(wide_job(RECIPES["pipeline"]), 4)) for _ in range(2))
    for column in ("operation", "stage", "start_s", "end_s", "sends"):
        assert np.array_equal(getattr(first, column), getattr(second, column))
    assert columns_of(first) == {len(first.start_s)}


def columns_of(timeline: Timeline) -> set[int]:
    names = ("operation", "stage", "stream", "micro_batch", "block", "launched_by", "end_s")
    return {len(getattr(timeline, name)) for name in names}
