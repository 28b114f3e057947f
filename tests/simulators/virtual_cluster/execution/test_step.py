"""Hand-made traces against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.samples import CLUSTER, GPU
from tests.simulators.virtual_cluster.execution.scripts import (
    BIG,
    MIB,
    SMALL,
    TP,
    Script,
    alone,
    collective_s,
    gemm_s,
    job,
    overlapping,
    pipeline,
    play,
    transfer_s,
)
from trainscout.simulators.predictor.question.cluster import HostShare
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import UNDECLARED, Framework


def test_one_stream_runs_in_order() -> None:
    script = alone()
    for _ in range(5):
        script.gemm(BIG)
    step = play(script)
    assert step.step_time_s == pytest.approx(5 * gemm_s(BIG, 1))
    assert step.breakdown_s == {"compute": pytest.approx(step.step_time_s)}
    assert step.hfu == pytest.approx(5 * 2 * BIG**3 / (step.step_time_s * GPU.peak("bf16")))
    assert step.precision == "bf16"
    assert step.ranks[0].flops == 5 * 2 * BIG**3


def test_streams_run_side_by_side_and_share_the_gpu() -> None:
    script = alone()
    script.gemm(BIG, stream=0)
    script.gemm(BIG, stream=1)
    step = play(script)
    # Two kernels at half speed each, which is no slowdown.
    assert step.step_time_s == pytest.approx(2 * gemm_s(BIG, 1))
    assert step.breakdown_s == {"compute": pytest.approx(step.step_time_s)}


def test_an_event_orders_two_streams() -> None:
    script = alone()
    script.gemm(BIG, stream=0)
    script.record(7, stream=0)
    script.gemm(BIG, stream=0)
    script.wait(7, stream=1)
    script.gemm(SMALL, stream=1)
    step = play(script)
    times = step.ranks[0].times
    assert times.start_s[5] == pytest.approx(gemm_s(BIG, 1))
    assert step.step_time_s == pytest.approx(2 * gemm_s(BIG, 1) + gemm_s(SMALL, 1))


def test_an_events_wait_passes_through_an_idle_stream() -> None:
    script = alone()
    script.gemm(BIG, stream=0)
    script.record(1, stream=0)
    script.wait(1, stream=5)
    # Nothing was launched on stream 5, but what comes after its event comes after stream 0.
    script.record(2, stream=5)
    script.wait(2, stream=6)
    script.gemm(SMALL, stream=6)
    step = play(script)
    assert step.step_time_s == pytest.approx(gemm_s(BIG, 1) + gemm_s(SMALL, 1))


def test_the_host_launches_ahead_until_it_is_the_slower() -> None:
    launch_s = 1e-3
    framework = Framework(name="slow", host_launch_s=launch_s)
    script = alone()
    for _ in range(4):
        script.gemm(SMALL)
    step = play(script, framework=framework)
    assert gemm_s(SMALL, 1) < launch_s
    assert step.step_time_s == pytest.approx(4 * launch_s + gemm_s(SMALL, 1))
    assert step.breakdown_s["host"] == pytest.approx(4 * launch_s - 3 * gemm_s(SMALL, 1))


def test_what_an_optimizer_does_on_the_host_is_of_its_step() -> None:
    size = 1 << 30
    script = Script(0, 1, begun=False)
    for number in range(2):
        script.step(number)
        script.gemm(BIG)
        script.synchronise()
        script.step(number, "optimizer")
        script.host_work(size)
        script.step(number, "other")
        # The next step's inputs, before its forward pass.
        script.gemm(SMALL)
    for host in ("traced", "declared"):
        step = play(script, host=host)
        update_s = size / (0.43 * HostShare.of(GPU, CLUSTER).memory_bytes_per_s)
        expected = update_s + gemm_s(BIG, 1) + gemm_s(SMALL, 1)
        assert step.step_time_s == pytest.approx(expected)
        assert step.breakdown_s["host"] == pytest.approx(update_s)
    assert "reads and writes its memory at 33 GB/s a GPU" in " ".join(step.assumptions)


def test_traced_gaps_replace_what_is_declared() -> None:
    script = alone()
    script.host(2e-3)
    script.gemm(SMALL)
    framework = Framework(name="slow", host_launch_s=5e-3)
    step = play(script, framework=framework, host="traced")
    expected = 2e-3 + UNDECLARED.host_launch_s + gemm_s(SMALL, 1)
    assert step.step_time_s == pytest.approx(expected)
    declared = play(script, framework=framework)
    assert declared.step_time_s == pytest.approx(5e-3 + gemm_s(SMALL, 1))


@pytest.mark.parametrize(
    "stop",
    [
        lambda script: script.synchronise(),
        lambda script: script.synchronise("stream", 0),
        lambda script: (script.record(3), script.synchronise("event", 3)),
        lambda script: script.read(),
    ],
)
def test_a_waiting_host_launches_late(stop: Callable[[Script], object]) -> None:
    gap_s = 1e-3
    script = alone()
    script.host(0.0)
    script.gemm(BIG)
    stop(script)
    script.host(gap_s)
    script.gemm(SMALL)
    launch_s = UNDECLARED.host_launch_s
    step = play(script, host="traced")
    expected = gemm_s(BIG, 1) + gap_s + 2 * launch_s + gemm_s(SMALL, 1)
    assert step.step_time_s == pytest.approx(expected)
    assert step.breakdown_s["host"] == pytest.approx(gap_s + 2 * launch_s)
    waits = step.ranks[0].times
    stopped = len(script.events) - 3
    assert waits.end_s[stopped] - waits.start_s[stopped] > 0.5 * gemm_s(BIG, 1)


def test_a_collective_holds_the_stream_that_waits_for_it() -> None:
    def write(script: Script) -> None:
        script.gemm(BIG)
        script.collective(TP, 64 * MIB)
        script.gemm(BIG)

    step = play(*job(8, write))
    wire_s = collective_s("all_reduce", 64 * MIB, tuple(range(8)))
    assert step.step_time_s == pytest.approx(2 * gemm_s(BIG, 8) + wire_s)
    assert step.breakdown_s["tp_communication"] == pytest.approx(wire_s)
    assert [rank.ranks for rank in step.ranks] == [8]


def test_a_collective_waits_for_its_slowest_member() -> None:
    def write(script: Script) -> None:
        script.gemm(BIG if script.rank == 5 else SMALL)
        script.collective(TP, MIB)

    step = play(*job(8, write))
    wire_s = collective_s("all_reduce", MIB, tuple(range(8)))
    assert step.step_time_s == pytest.approx(gemm_s(BIG, 8) + wire_s)
    bubbles = {rank.rank: rank.breakdown_s.get("bubble", 0.0) for rank in step.ranks}
    assert bubbles[0] == pytest.approx(gemm_s(BIG, 8) - gemm_s(SMALL, 8))
    assert bubbles[5] == 0.0
    assert step.critical_rank == 5


def test_communication_overlaps_what_does_not_wait_and_slows_it() -> None:
    step = play(*job(8, overlapping))
    wire_s = collective_s("all_reduce", 256 * MIB, tuple(range(8)))
    longest = max(wire_s, gemm_s(BIG, 8))
    assert longest + gemm_s(SMALL, 8) < step.step_time_s
    assert step.step_time_s < wire_s + gemm_s(BIG, 8) + gemm_s(SMALL, 8)
    assert step.breakdown_s["overlap_slowdown"] > 0


def test_communicators_have_streams_of_their_own() -> None:
    def write(script: Script) -> None:
        script.group("DATA_PARALLEL_GROUP", *range(8))
        first = script.collective(TP, 64 * MIB, wait=False)
        second = script.collective("DATA_PARALLEL_GROUP", 64 * MIB, wait=False)
        script.work_wait(first)
        script.work_wait(second)
        script.gemm(BIG)

    step = play(*job(8, write))
    wire_s = collective_s("all_reduce", 64 * MIB, tuple(range(8)))
    assert step.step_time_s == pytest.approx(wire_s + gemm_s(BIG, 8))


def test_a_host_may_wait_for_communication() -> None:
    def write(script: Script) -> None:
        work = script.collective(TP, 64 * MIB, wait=False)
        script.work_wait(work, host=True)
        script.host(1e-3)
        script.gemm(SMALL)

    step = play(*job(8, write), host="traced")
    wire_s = collective_s("all_reduce", 64 * MIB, tuple(range(8)))
    expected = wire_s + 1e-3 + 2 * UNDECLARED.host_launch_s + gemm_s(SMALL, 8)
    assert step.step_time_s == pytest.approx(expected)


@pytest.mark.parametrize("batched", [True, False])
def test_a_ring_of_transfers_runs_at_once(batched: bool) -> None:
    size = 16 * MIB

    def write(script: Script) -> None:
        script.gemm(SMALL)
        after, before = (script.rank + 1) % 8, (script.rank - 1) % 8
        batch = 1 if batched else None
        works = [
            script.transfer("send", TP, after, size, batch),
            script.transfer("recv", TP, before, size, batch),
        ]
        for work in works:
            script.work_wait(work)
        script.gemm(SMALL)

    scripts = job(8, write)
    step = play(*scripts)
    # The slowest hop is between nodes; hops inside them are over by then.
    wire_s = max(transfer_s(size, 3, 4, tuple(range(8))), transfer_s(size, 0, 1, tuple(range(8))))
    if batched:
        assert step.step_time_s == pytest.approx(2 * gemm_s(SMALL, 8) + wire_s, rel=1e-6)
    else:
        assert step.step_time_s >= 2 * gemm_s(SMALL, 8) + wire_s - 1e-12
    assert not any("no other side" in each for each in step.assumptions)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (4, 4), (4, 9), (8, 8)])
def test_the_bubble_of_a_pipeline(stages: int, micro_batches: int) -> None:
    step = play(*pipeline(stages, micro_batches))
    forward, backward = gemm_s(SMALL, stages), gemm_s(BIG, stages)
    # With eight stages one hop is between nodes.
    hop_s = max(
        transfer_s(1, stage, stage + 1, tuple(range(stages))) for stage in range(stages - 1)
    )
    bubble = (stages - 1) * (forward + backward)
    ideal = micro_batches * (forward + backward) + bubble
    assert ideal <= step.step_time_s < ideal + 4 * (micro_batches + stages) * hop_s
    critical = step.breakdown_s
    waiting = critical["bubble"] + critical["pp_communication"]
    assert waiting == pytest.approx(step.step_time_s - micro_batches * (forward + backward))
    assert critical["pp_communication"] < 2 * (micro_batches + stages) * hop_s


def test_inner_stages_that_do_the_same_are_played_each() -> None:
    # GPipe: whoever plays for two stages, one sending to the other, waits for itself.
    stages, micro_batches = 5, 3
    scripts = [Script(stage, stages) for stage in range(stages)]
    for script in scripts:
        script.group("of no name", *range(stages))
        for size, way in ((SMALL, 1), (BIG, -1)):
            before, after = script.rank - way, script.rank + way
            for _ in range(micro_batches):
                if 0 <= before < stages:
                    script.work_wait(script.transfer("recv", "of no name", before, 1))
                script.gemm(size)
                if 0 <= after < stages:
                    script.work_wait(script.transfer("send", "of no name", after, 1))
    step = play(*scripts)
    ideal = (micro_batches + stages - 1) * (gemm_s(SMALL, stages) + gemm_s(BIG, stages))
    hop_s = max(transfer_s(1, at, at + 1, tuple(range(stages))) for at in range(stages - 1))
    assert ideal <= step.step_time_s < ideal + 4 * (micro_batches + stages) * hop_s
    assert [rank.rank for rank in step.ranks] == list(range(stages))
    # Of one alone only what it sends tells.
    others = "sends to or receives from [1], which are taken to do as it does"
    assert any(others in each for each in play(scripts[0]).assumptions)
    assert not any("which are taken" in each for each in step.assumptions)


def test_stand_ins_play_for_ranks_that_were_not_traced() -> None:
    def write(script: Script) -> None:
        stage = script.rank // 4
        script.group("PIPELINE_MODEL_PARALLEL_GROUP", script.rank % 4, script.rank % 4 + 4)
        script.group("DATA_PARALLEL_GROUP", *range(stage * 4, stage * 4 + 4))
        pipe = "PIPELINE_MODEL_PARALLEL_GROUP"
        if stage == 0:
            script.gemm(BIG)
            script.transfer("send", pipe, script.rank + 4, MIB, 1)
        else:
            script.work_wait(script.transfer("recv", pipe, script.rank - 4, MIB, 1))
            script.gemm(SMALL)
        script.collective("DATA_PARALLEL_GROUP", 4 * MIB)

    scripts = [Script(rank, 8) for rank in range(8)]
    for script in scripts:
        write(script)
    everybody = play(*scripts)
    # Two ranks that are not even in one pipeline.
    few = play(scripts[1], scripts[6])
    assert few.step_time_s == pytest.approx(everybody.step_time_s)
    assert [(rank.rank, rank.ranks) for rank in few.ranks] == [(1, 4), (6, 4)]
    hop = transfer_s(MIB, 0, 4, (0, 4))
    reduce_s = collective_s("all_reduce", 4 * MIB, (4, 5, 6, 7))
    expected = gemm_s(BIG, 8) + hop + gemm_s(SMALL, 8) + reduce_s
    assert few.step_time_s == pytest.approx(expected, rel=1e-3)


def test_unknown_operations_are_estimates_and_listed() -> None:
    script = alone()
    script.gemm(BIG)
    first = script.events[-1]
    script.events.append(replace(first, name="mylib.mystery.default"))  # type: ignore[type-var]
    step = play(script)
    assert list(step.unknown_operations) == ["mylib.mystery.default"]
    share = step.unknown_operations["mylib.mystery.default"]
    assert 0 < share < 1
    assert step.evidence_share["estimated"] == pytest.approx(share)
    assert step.coverage_share["unknown"] == pytest.approx(share)
    assert step.coverage_share["gemm"] == pytest.approx(1 - share)
    assert "mystery" in step.estimated_operations
    assert sum(step.evidence_share.values()) == pytest.approx(1)


def test_model_flops_give_an_mfu() -> None:
    script = alone()
    script.gemm(BIG)
    step = play(script, model_flops=BIG**3)
    assert step.mfu == pytest.approx(step.hfu / 2)
    assert play(script).mfu is None


def test_what_cannot_be_played_is_refused() -> None:
    script = alone()
    script.gemm(BIG)
    with pytest.raises(InputError, match="host=typed"):
        play(script, host="typed")
    with pytest.raises(InputError, match="runs nothing"):
        play(alone())
    many = [Script(rank, 16) for rank in range(16)]
    with pytest.raises(InputError, match="more than the 8 GPUs"):
        play(*many)


def test_ranks_that_wait_for_each_other_are_refused() -> None:
    scripts = [Script(rank, 2) for rank in range(2)]
    for script in scripts:
        for name in ("a", "b"):
            script.group(name, 0, 1)
        for name in ("a", "b") if script.rank else ("b", "a"):
            script.collective(name, MIB)
            script.synchronise()
    with pytest.raises(InputError, match="never ends") as refused:
        play(*scripts)
    assert "auto" not in str(refused.value)


def test_a_stage_alone_that_waits_for_itself_wants_the_others_traced() -> None:
    """Groups without a name, as of Megatron-Core 0.10, do not say that they are a pipeline."""
    script = Script(0, 2)
    script.group("undefined", 0, 1)
    for kind in ("send", "recv"):
        script.work_wait(script.transfer(kind, "undefined", 1, 1))
    with pytest.raises(InputError, match=r"never ends.*more ranks, as of run --rank auto"):
        play(script)


@pytest.mark.parametrize(("name", "said"), [("undefined", True), (TP, False)])
def test_whose_communication_nobody_can_tell_is_said(name: str, said: bool) -> None:
    scripts = [Script(rank, 2) for rank in range(2)]
    for script in scripts:
        script.group(name, 0, 1)
        script.collective(name, MIB)
        script.synchronise()
    stated = "groups: 1 without a name, shown as dp communication whatever they are for"
    assert (stated in play(*scripts).assumptions) is said


def test_the_same_traces_give_the_same_answer() -> None:
    first, second = (play(*pipeline(4, 6)) for _ in range(2))
    assert first.step_time_s == second.step_time_s
    for one, other in zip(first.ranks, second.ranks, strict=True):
        assert np.array_equal(one.times.start_s, other.times.start_s, equal_nan=True)
        assert one.breakdown_s == other.breakdown_s


def test_no_rank_is_done_before_its_own_work() -> None:
    step = play(*pipeline(4, 6))
    for rank in step.ranks:
        assert rank.breakdown_s["compute"] <= step.step_time_s
        assert math.isclose(
            rank.breakdown_s["compute"] + rank.breakdown_s["stragglers"],
            6 * (gemm_s(SMALL, 4) + gemm_s(BIG, 4)),
            rel_tol=0.05,
        )
