"""The pass timeline against the replay that it shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples import CLUSTER, GPU, MOE_MODEL, job_of
from tests.simulators.predictor.replay.conftest import Machine, Rates
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.replay.pass_timeline import (
    LANES,
    NONE,
    PASS_KINDS,
    PassTimeline,
    passes_of,
)
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.replay.step_program import step_program

RECIPES = {
    "one stage": Recipe(tp=8, sp=True),
    "pipeline": Recipe(tp=4, pp=4, sp=True),
    "gpipe": Recipe(tp=4, pp=4, schedule="gpipe"),
    "breadth-first": Recipe(tp=4, pp=4, vpp=2, schedule="gpipe"),
    "interleaved": Recipe(tp=4, pp=4, vpp=2, sp=True),
    "overlapped": Recipe(tp=4, pp=2, overlap_grad_reduce=True, overlap_param_gather=True),
    "fsdp": Recipe(tp=4, zero_stage=3, sp=True),
    "recompute": Recipe(tp=4, pp=2, sp=True, recompute="full"),
}


def of_kind(timeline: PassTimeline, kind: str) -> np.ndarray:
    found: np.ndarray = timeline.kind == PASS_KINDS.index(kind)
    return found


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_ends_when_the_predicted_step_ends(recipe: Recipe) -> None:
    job = job_of(recipe)
    timeline = passes_of(step_program(job))
    assert timeline.step_time_s == pytest.approx(ReplaySimulator().simulate(job).step_time_s)
    assert timeline.micro_batches == timeline.num_micro_batches == job.num_micro_batches


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_rows_of_a_lane_never_overlap(recipe: Recipe) -> None:
    timeline = passes_of(step_program(job_of(recipe), micro_batches=8))
    assert (timeline.end_s >= timeline.start_s).all()
    for stage in range(recipe.pp):
        for lane in range(len(LANES)):
            rows = (timeline.stage == stage) & (timeline.lane == lane)
            assert (timeline.start_s[rows][1:] >= timeline.end_s[rows][:-1] - 1e-12).all()


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_every_micro_batch_passes_every_chunk_forward_then_backward(recipe: Recipe) -> None:
    timeline = passes_of(step_program(job_of(recipe), micro_batches=8))
    forward, backward = of_kind(timeline, "forward"), of_kind(timeline, "backward")
    started: dict[tuple[int, int, int], float] = {}
    for rows, ends in ((forward, True), (backward, False)):
        keys = zip(
            *(c[rows].tolist() for c in (timeline.stage, timeline.chunk, timeline.micro_batch)),
            strict=True,
        )
        times = timeline.end_s[rows] if ends else timeline.start_s[rows]
        for key, at in zip(keys, times.tolist(), strict=True):
            if ends:
                assert key not in started
                started[key] = at
            else:
                assert at >= started.pop(key)
    assert not started
    assert forward.sum() == 8 * recipe.pp * recipe.vpp


def test_breadth_first_stages_take_any_number_of_micro_batches() -> None:
    recipe = RECIPES["breadth-first"]
    assert passes_of(step_program(job_of(recipe), micro_batches=3)).micro_batches == 3
    with pytest.raises(InputError, match="in multiples of 4"):
        step_program(job_of(RECIPES["interleaved"]), micro_batches=3)


@given(
    pp=st.sampled_from([1, 2, 4]),
    schedule=st.sampled_from(["1f1b", "gpipe"]),
    zero=st.sampled_from([0, 1, 2, 3]),
    rounds=st.integers(1, 4),
    beside=st.booleans(),
)
def test_passes_of_a_stage_follow_those_they_depend_on(
    pp: int, schedule: str, zero: int, rounds: int, beside: bool
) -> None:
    zero = min(zero, 1) if pp > 1 else zero
    recipe = Recipe(
        tp=2, pp=pp, schedule=schedule, zero_stage=zero, overlap_grad_reduce=beside and zero < 3
    )
    timeline = passes_of(step_program(job_of(recipe), micro_batches=rounds))
    for kind, step in (("forward", 1), ("backward", -1)):
        rows = of_kind(timeline, kind)
        ends = {
            (stage, micro): (start, end)
            for stage, micro, start, end in zip(
                timeline.stage[rows].tolist(),
                timeline.micro_batch[rows].tolist(),
                timeline.start_s[rows].tolist(),
                timeline.end_s[rows].tolist(),
                strict=True,
            )
        }
        for (stage, micro), (start, _) in ends.items():
            before = ends.get((stage - step, micro))
            assert before is None or start >= before[1] - 1e-12
    last = np.flatnonzero(of_kind(timeline, "optimizer"))
    assert len(last) == pp
    assert (timeline.micro_batch[last] == NONE).all()


def test_a_transfer_that_blocks_its_sender_is_a_row_of_its_length(machine: Machine) -> None:
    machine(Rates(send_s=0.25))
    timeline = passes_of(step_program(job_of(RECIPES["pipeline"]), micro_batches=2))
    sends = of_kind(timeline, "send")
    # Three neighbours, two micro-batches, two directions.
    assert sends.sum() == 12
    assert (timeline.end_s - timeline.start_s)[sends] == pytest.approx(0.25)


def test_recomputation_is_the_time_of_the_forward_pass_it_repeats(machine: Machine) -> None:
    machine(Rates())
    plain = passes_of(step_program(job_of(Recipe(tp=4, pp=2)), micro_batches=1))
    full = passes_of(step_program(job_of(Recipe(tp=4, pp=2, recompute="full")), micro_batches=1))
    assert plain.recompute_s.sum() == 0
    first = (full.stage == 0) & of_kind(full, "backward")
    forward = (full.stage == 0) & of_kind(full, "forward")
    # The embedding's lookup is no matrix product: free here, and not repeated.
    assert full.recompute_s[first] == pytest.approx((full.end_s - full.start_s)[forward])
    assert full.recompute_s[~of_kind(full, "backward")].sum() == 0


@pytest.mark.parametrize("modules", ["core_attn", "mlp+layernorm", "moe_act", "operations"])
def test_recomputation_of_some_modules_is_between_none_and_all(modules: str) -> None:
    def seconds(recipe: Recipe) -> float:
        job = Job(MOE_MODEL, GPU, CLUSTER, Training(64, 1e9), recipe)
        return float(passes_of(step_program(job, micro_batches=1)).recompute_s.sum())

    every = seconds(Recipe(tp=2, ep=2, recompute="full"))
    some = seconds(Recipe(tp=2, ep=2, recompute="selective", recompute_modules=modules))
    assert 0 < some < every


def test_gathers_and_reductions_beside_compute_have_a_lane_of_their_own() -> None:
    timeline = passes_of(step_program(job_of(RECIPES["overlapped"]), micro_batches=4))
    beside = timeline.lane == LANES.index("data_parallel")
    assert set(timeline.kind[beside].tolist()) == {
        PASS_KINDS.index("gather"),
        PASS_KINDS.index("reduce"),
    }
    assert not (of_kind(timeline, "gather") & ~beside).any()


@pytest.mark.parametrize("micro_batches", [0, 3, 1000])
def test_refuses_micro_batches_the_schedule_cannot_run(micro_batches: int) -> None:
    with pytest.raises(InputError, match=r"timeline\.micro_batches"):
        passes_of(step_program(job_of(RECIPES["interleaved"]), micro_batches))


def test_a_slow_host_makes_the_step_longer_here_as_in_the_prediction() -> None:
    job = replace(job_of(RECIPES["pipeline"]), framework=Framework(host_launch_s=1e-4))
    timeline = passes_of(step_program(job))
    assert timeline.step_time_s == pytest.approx(ReplaySimulator().simulate(job).step_time_s)
