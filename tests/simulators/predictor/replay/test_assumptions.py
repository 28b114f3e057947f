"""What a prediction says it takes for granted."""

from __future__ import annotations

from dataclasses import replace

from tests.samples import ARCHITECTURES, GPU
from tests.simulators.jobs import HYBRID, MOE, TINY, make_job
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator


def statement(**job: object) -> str:
    return "; ".join(ReplaySimulator().simulate(make_job(**job)).assumptions)


def test_each_assumption_is_stated_only_where_it_is_made() -> None:
    alone = statement(model=TINY, gpus_per_node=1)
    assert "NCCL buffers and memory fragmentation are estimated" in alone
    assert "slower than its peers" not in alone
    plain = statement(model=TINY, tp=2)
    assert "slower than its peers" in plain
    for word in ("evenly loaded", "TP overlap", "share a NIC"):
        assert word not in plain
    assert "evenly loaded" in statement(model=MOE, ep=2)
    assert MOE.moe is not None
    busy = replace(MOE.moe, load_imbalance=1.5)
    assert "1.5 times the mean" in statement(model=replace(MOE, moe=busy), ep=2)
    assert "evenly" in statement(model=replace(MOE, moe=replace(busy, capacity_factor=1.0)), ep=2)
    hot = replace(MOE.moe, hot_ratio=0.25, hot_weight=0.5)
    uneven = statement(model=replace(MOE, moe=hot), ep=2)
    assert "25% of the experts" in uneven
    assert "busiest GPU were the same" in uneven
    # Two of eight experts ask for 80 % and may keep their even share, a quarter.
    hot = replace(hot, hot_weight=0.8, capacity_factor=1.0)
    assert "capacity 1 drops 5" in statement(model=replace(MOE, moe=hot), ep=2)
    assert "TP overlap" in statement(model=TINY, tp=2, sp=True, tp_comm_overlap=True)
    assert "share a NIC" in statement(model=TINY, pp=2, vpp=2)


def test_memory_of_graphs_is_said_not_to_be_counted() -> None:
    assert "CUDA graphs" not in statement(model=TINY)
    assert "memory that CUDA graphs keep is not counted" in statement(model=TINY, cuda_graphs=True)


def test_hybrids_are_recomputed_whole_by_recent_software_alone() -> None:
    said = "since May 2026"
    assert said in statement(model=HYBRID, recompute="full")
    assert said not in statement(model=HYBRID)
    assert said not in statement(model=TINY, recompute="full")
    assert said not in statement(model=HYBRID, recompute="full", training={"space": "torch"})


def test_gathers_of_experts_in_a_loop_are_said_to_be_too_few() -> None:
    loop = {"loops_experts": True}
    assert "far too fast" in statement(model=MOE, zero_stage=3, training=loop)
    assert "far too fast" not in statement(model=MOE, zero_stage=1, training=loop)
    units = {**loop, "torch_wrappers": True}
    assert "far too fast" not in statement(model=MOE, zero_stage=3, training=units)
    assert "far too fast" not in statement(model=MOE, zero_stage=3)


def test_attention_on_a_gpu_too_old_for_it_is_said() -> None:
    old = replace(GPU, name="old", architecture=ARCHITECTURES["volta"])
    job = make_job(model=TINY, precision="fp16")
    stated = "; ".join(ReplaySimulator().simulate(replace(job, gpu=old)).assumptions)
    assert "attention is unfused: old has no flash kernels" in stated
    assert "unfused" not in "; ".join(ReplaySimulator().simulate(job).assumptions)


def test_launch_bound_steps_say_what_they_rest_on() -> None:
    extra = {"host_tp_product_s": 3e-4, "host_unit_s": 6e-4, "torch_wrappers": True}
    slow = Framework(name="slow", host_launch_s=80e-6, host_forward_s=20e-6, **extra)  # type: ignore[arg-type]
    found = ReplaySimulator().simulate(replace(make_job(model=TINY), framework=slow))
    share = found.breakdown_s["host"] / found.step_time_s
    stated = "; ".join(found.assumptions)
    assert f"launch-bound: {share:.0%} of the step" in stated
    assert "80 us per kernel and 20 us more per operation of a module" in stated
    assert "declared for slow, for every host CPU alike" in stated
    arm = make_job(model=TINY)
    arm = replace(arm, cluster=replace(arm.cluster, cpu="arm"), framework=slow)
    assert "times 2.6 on an Arm CPU" in "; ".join(ReplaySimulator().simulate(arm).assumptions)
    assert "tensor-parallel" not in stated
    sharded = ReplaySimulator().simulate(replace(make_job(model=TINY, tp=2), framework=slow))
    assert "300 us more per product of tensor-parallel ranks" in "; ".join(sharded.assumptions)
    assert "sharded layer" not in "; ".join(sharded.assumptions)
    units = ReplaySimulator().simulate(
        replace(make_job(model=TINY, zero_stage=3), framework=replace(slow, fused_wgrad=False))
    )
    assert "600 us more per sharded layer in a pass" in "; ".join(units.assumptions)
    assert "no framework is declared" in statement(model=TINY)
    graphed = replace(slow, cuda_graphs=True)
    again = ReplaySimulator().simulate(replace(make_job(model=TINY), framework=graphed))
    assert "launch-bound" not in "; ".join(again.assumptions)
