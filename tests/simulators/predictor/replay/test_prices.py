"""Blocks priced alone: sequences, overlaps, parts and what identifies a price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.samples import ARCHITECTURES
from tests.simulators.jobs import GPT175B, GPU, MLA_MOE, NODE, TINY, make_job
from tests.simulators.predictor.replay.conftest import Machine, Rates
from trainscout.simulators.predictor.kernels.batch_prices import KernelPrices
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay import prices
from trainscout.simulators.predictor.replay.host import SYNC_LAUNCHES
from trainscout.simulators.predictor.replay.passes import PassPricer, sum_blocks
from trainscout.simulators.predictor.replay.priced import COMMUNICATION, PARTS, PricedBlock
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.communicators import communicators
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.parameters import LocalParameters
from trainscout.simulators.predictor.workload.program import Run
from trainscout.simulators.predictor.workload.schedules.passes import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    backward_block,
)

# One multiply-add takes a second, and so does one byte gathered over two ranks.
SLOW = Rates(flops_per_s=2.0, wire_bytes_per_s=0.5)


def gemm(seconds: int) -> ir.Gemm:
    return ir.Gemm("product", seconds, 1, 1, "bf16")


def gather(seconds: int, overlaps: int = 0) -> ir.Collective:
    return ir.Collective("gather", "all_gather", seconds, "tp", "bf16", overlaps)


def priced(*ops: Any) -> PricedBlock:
    job = make_job(TINY, tp=2)
    return Pricer(GPU, NODE, Framework(), communicators(job)).block(ir.Block("test", ops))


def parts(block: PricedBlock) -> dict[str, float]:
    return {name: part for name, part in zip(PARTS, block.part_s.tolist(), strict=True) if part}


def test_the_slowest_rank_stretches_kernels_and_nothing_else(machine: Machine) -> None:
    machine(replace(SLOW, excess=0.25))
    block = priced(gemm(4), gather(2), gemm(4))
    assert parts(block) == {"compute": 8, "tp_communication": 2, "stragglers": 2}
    assert block.seconds == 12
    assert block.kernel_s[0].sum() == pytest.approx(10)


def test_kernels_and_collectives_take_turns(machine: Machine) -> None:
    machine(SLOW)
    block = priced(gemm(3), gather(2), ir.Alloc("kept", 10), gemm(4))
    assert block.seconds == 9
    assert parts(block) == {"compute": 7, "tp_communication": 2}
    assert block.kernel_s[0].sum() == pytest.approx(7)


@pytest.mark.parametrize(
    ("compute_s", "communication_s", "slowdown", "expected"),
    [
        # The shorter side is hidden, the longer remains.
        (3, 2, 1.0, {"compute": 3}),
        (2, 3, 1.0, {"compute": 2, "tp_communication": 1}),
        # Twice as slow together: 1 s of communication takes 2, in which 1 of 3 s is computed.
        (3, 1, 2.0, {"compute": 3, "overlap_slowdown": 1}),
        # 1 s of compute takes 2, in which 1 of 3 s is sent; 2 are left alone.
        (1, 3, 2.0, {"compute": 1, "overlap_slowdown": 1, "tp_communication": 2}),
        (2, 2, 1.5, {"compute": 2, "overlap_slowdown": 1}),
    ],
)
def test_communication_beside_a_kernel(
    machine: Machine,
    compute_s: int,
    communication_s: int,
    slowdown: float,
    expected: dict[str, float],
) -> None:
    machine(replace(SLOW, slowdown=slowdown))
    block = priced(gather(communication_s, overlaps=1), gemm(compute_s))
    assert parts(block) == pytest.approx(expected)
    assert block.seconds == pytest.approx(sum(expected.values()))


def test_only_the_kernels_named_run_beside(machine: Machine) -> None:
    machine(SLOW)
    block = priced(gather(5, overlaps=2), gemm(1), gemm(2), gemm(4))
    assert parts(block) == {"compute": 7, "tp_communication": 2}


def test_other_communication_between_the_kernels_takes_its_own_time(machine: Machine) -> None:
    machine(SLOW)
    between = ir.Collective("other", "all_gather", 2, "cp", "bf16")
    ops = (gather(7, overlaps=3), gemm(1), between, gemm(3))
    groups = communicators(make_job(TINY, tp=2, cp=2))
    block = Pricer(GPU, NODE, Framework(), groups).block(ir.Block("test", ops))
    # The first needs 7 s, of which 4 run beside kernels and 2 beside the other.
    assert parts(block) == {"compute": 4, "tp_communication": 1, "cp_communication": 2}


def test_every_communicator_has_a_part(machine: Machine) -> None:
    machine(replace(SLOW, send_s=1.0))
    groups = communicators(make_job(MLA_MOE, nodes=2, tp=2, pp=2, sp=True))
    assert set(groups) <= set(COMMUNICATION)
    assert set(COMMUNICATION.values()) <= set(PARTS)
    pricer = Pricer(GPU, NODE, Framework(), groups)
    assert parts(pricer.block(ir.Block("send", (ir.SendRecv("send", 1, "pp"),)))) == {
        "pp_communication": 1
    }


def test_launches_are_counted_per_kernel(machine: Machine) -> None:
    machine(replace(SLOW, launch_s=2.0))
    block = priced(
        gemm(1), ir.Streaming("norm", "norm_fwd", 1, launches=3), gather(1), ir.Alloc("x", 1)
    )
    assert block.host_s == 2.0 * (1 + 3 + 1)


def test_experts_are_launched_one_by_one_but_cheaply(machine: Machine) -> None:
    machine(replace(SLOW, launch_s=2.0))
    experts = ir.GroupedGemm("experts", 32, 1, 1, 1, "bf16")
    assert priced(experts).host_s == 2.0 * (1 + 32 * 7 // 24)
    assert priced(replace(experts, one_kernel=True)).host_s == 2.0


def test_a_block_in_which_the_host_waits_holds_the_device_up(machine: Machine) -> None:
    machine(replace(SLOW, launch_s=1.0))
    block = priced(gemm(50), ir.HostSync("counts"), gemm(50))
    assert parts(block) == {"compute": 100, "host": SYNC_LAUNCHES + 1}
    assert block.seconds == 100 + SYNC_LAUNCHES + 1


def test_launches_that_wait_for_their_kernels_hide_behind_nothing(machine: Machine) -> None:
    machine(replace(SLOW, launch_s=2.0))
    groups = communicators(make_job(TINY, tp=2))
    ops = (gather(5, overlaps=1), gemm(50), ir.Streaming("norm", "norm_fwd", 0, launches=3))
    block = Pricer(GPU, NODE, Framework(launch_blocking=True), groups).block(ir.Block("test", ops))
    assert parts(block) == {"compute": 50, "tp_communication": 5, "host": 2.0 * (1 + 1 + 3)}
    captured = Framework(launch_blocking=True, cuda_graphs=True)
    assert parts(Pricer(GPU, NODE, captured, groups).block(ir.Block("test", ops))) == {
        "compute": 50
    }


@pytest.mark.parametrize(
    "change",
    [
        {"l2_bytes": 1},
        {"pcie_bytes_per_s": 1.0},
        {"nvlink_links": 1},
        {"nvlink_bytes_per_s": 1.0},
        {"architecture": ARCHITECTURES["volta"]},
        {"compute_capability": 7.0},
        {"sms": 1},
        {"peak_flops": {"bf16": 1.0}},
    ],
)
def test_another_gpu_is_priced_anew(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    machine(SLOW)
    asked: list[Gpu] = []

    def price_kernels(gpu: Gpu, ops: Sequence[ir.Kernel], measured: None = None) -> KernelPrices:
        asked.append(gpu)
        return KernelPrices(np.ones(1), np.ones(1, dtype=np.int8), np.zeros(1))

    monkeypatch.setattr(prices, "price_kernels", price_kernels)
    block, groups = ir.Block("test", (gemm(1),)), communicators(make_job(TINY))
    other = replace(GPU, **change)
    for gpu in (GPU, GPU, other, other):
        Pricer(gpu, NODE, Framework(), groups).block(block)
    assert asked == [GPU, other]


@pytest.mark.parametrize("bucket", [None, 1, 500_000, 10**9])
@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_segments_add_up_to_the_pass(machine: Machine, bucket: int | None, direction: int) -> None:
    machine(Rates(flops_per_s=1e12, memory_bytes_per_s=1e11, launch_s=1e-4))
    workload = build_workload(make_job(TINY))
    chunk = workload.stages[0].chunks[0]
    passes = PassPricer(Pricer(GPU, NODE, Framework(), workload.communicators), bucket)
    whole, segments = passes.whole(chunk, direction), passes.segments(chunk, direction)
    assert sum(each.price.seconds for each in segments) == pytest.approx(whole.seconds, rel=1e-12)
    assert sum(each.price.part_s for each in segments) == pytest.approx(whole.part_s, rel=1e-12)
    total = sum((each.parameters for each in segments), LocalParameters())
    assert total == chunk.parameters
    blocks = [block for each in segments for block in each.blocks]
    runs = [run for run in chunk.runs for _ in range(run.count)]
    in_order = [run.forward for run in runs]
    if direction == BACKWARD:
        in_order = [run.backward for run in reversed(runs)]
    assert blocks == in_order


def test_buckets_close_when_full_from_the_last_layer_on(machine: Machine) -> None:
    machine(SLOW)
    workload = build_workload(make_job(TINY))
    chunk = workload.stages[0].chunks[0]
    per_layer = chunk.runs[1].parameters.total
    passes = PassPricer(Pricer(GPU, NODE, Framework(), workload.communicators), 3 * per_layer)
    backward = passes.segments(chunk, BACKWARD)
    # Head and three layers, three times three layers; what is left over closes with the pass.
    assert [len(each.blocks) for each in backward] == [4, 3, 3, 3, 1]
    assert [len(each.blocks) for each in passes.segments(chunk, FORWARD)] == [1, 3, 3, 3, 4]
    assert all(each.parameters.total >= 3 * per_layer for each in backward[:-1])


def test_what_runs_long_does_not_win_back_what_the_host_was_behind(machine: Machine) -> None:
    # Twelve layers that launch slowly, then a head that computes for long.
    machine(replace(SLOW, flops_per_s=1e30, wire_bytes_per_s=np.inf, launch_s=1e-3))
    job = make_job(TINY)
    chunk = build_workload(job).stages[0].chunks[0]
    pricer = Pricer(GPU, NODE, Framework(), communicators(job))
    layers = [(pricer.block(run.forward), run.count) for run in chunk.runs[:-1]]
    host_s = sum(block.host_s * count for block, count in layers)
    head = replace(pricer.block(chunk.runs[-1].forward), seconds=5.0)
    assert sum_blocks(layers).seconds == pytest.approx(host_s)
    assert sum_blocks([*layers, (head, 1)]).seconds == pytest.approx(host_s + 5)
    # Where it runs first, the host gets ahead of it.
    assert sum_blocks([(head, 1), *layers]).seconds == pytest.approx(max(5, host_s), rel=0.01)


def extra_s(job: Job, block: ir.Block, **slower: float) -> float:
    """What the host takes longer for a block with those times of a framework than without."""
    slow, fast = (
        Pricer.of(
            replace(job, framework=replace(job.framework, **each)), communicators(job)
        ).block(block)
        for each in (slower, dict.fromkeys(slower, 0.0))
    )
    return slow.host_s - fast.host_s


def layer_of(job: Job) -> Run:
    return build_workload(job).stages[0].chunks[0].runs[1]


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_forward_passes_cost_the_host_more_than_autograd(recompute: str) -> None:
    job = make_job(TINY, recompute=recompute)
    run = layer_of(job)
    issued = len(Pricer.of(job, communicators(job)).operations(run.forward))
    assert run.forward.forward_ops == issued
    assert run.backward.forward_ops == (issued if recompute == "full" else 0)
    for block in (run.forward, run.backward):
        extra = extra_s(job, block, host_forward_s=1e-3)
        assert extra == pytest.approx(block.forward_ops * 1e-3)
    graphs = Framework(host_forward_s=1e-3, cuda_graphs=True)
    assert Pricer(GPU, NODE, graphs, communicators(job)).block(run.forward).host_s == 0


def test_arm_hosts_take_longer_most_for_modules_of_pytorch() -> None:
    job = make_job(TINY)
    run, groups = layer_of(job), communicators(job)
    for forward_s, pace in ((1e-3, 2.6), (0.0, 1.2)):
        framework = Framework(host_forward_s=forward_s)
        x86, arm = (
            Pricer(GPU, replace(NODE, cpu=cpu), framework, groups) for cpu in ("amd", "arm")
        )
        for block in (run.forward, run.backward):
            assert arm.block(block).host_s == pytest.approx(pace * x86.block(block).host_s)


@pytest.mark.parametrize(("forward_s", "overlap", "pace"), [(0, 0, 2.6), (0, 1, 1.2), (1, 0, 2.6)])
def test_arm_hosts_take_longer_most_for_communication(
    forward_s: float, overlap: bool, pace: float
) -> None:
    job = make_job(TINY, tp=2, sp=True, tp_comm_overlap=bool(overlap))
    framework, groups = Framework(host_forward_s=forward_s), communicators(job)
    x86, arm = (Pricer(GPU, replace(NODE, cpu=cpu), framework, groups) for cpu in ("amd", "arm"))
    block = layer_of(job).backward
    priced = x86.operations(block)
    pairs = zip(*(pricer.launch_seconds(block, priced) for pricer in (x86, arm)), strict=True)
    for each, (fast_s, slow_s) in zip(priced, pairs, strict=True):
        sent = isinstance(each.op, ir.Collective)
        assert slow_s == pytest.approx((pace if sent or forward_s else 1.2) * fast_s)


@pytest.mark.parametrize(("nodes", "pp", "held"), [(2, 2, True), (2, 1, False), (1, 2, False)])
def test_collectives_take_the_host_more_where_a_pipeline_spans_nodes(
    nodes: int, pp: int, held: bool
) -> None:
    job = make_job(TINY, nodes=nodes, pp=pp, tp=2, sp=True)
    forward = layer_of(job).forward
    assert sum(isinstance(op, ir.Collective) for op in forward.ops) == 4
    assert extra_s(job, forward, host_tp_rank_s=1e-3) == pytest.approx(held * 4 * 2 * 1e-3)


@pytest.mark.parametrize(
    ("tp", "fusion", "held"), [(2, "eager", True), (1, "eager", False), (2, "compiled", False)]
)
def test_products_of_tensor_parallel_ranks_take_the_host_more_unless_compiled(
    tp: int, fusion: str, held: bool
) -> None:
    job = make_job(TINY, tp=tp)
    run = layer_of(job)
    job = replace(job, framework=replace(job.framework, fusion=fusion))
    for block in (run.forward, run.backward):
        products = sum(isinstance(op, ir.Gemm) for op in block.ops)
        assert products > 0
        extra = extra_s(job, block, host_tp_product_s=1e-3)
        assert extra == pytest.approx(held * products * 1e-3)


@pytest.mark.parametrize(
    ("stage", "facts", "held"),
    [
        (3, {"torch_wrappers": True}, True),
        (2, {"torch_wrappers": True}, True),
        (1, {"torch_wrappers": True}, False),
        (3, {}, True),
        (2, {}, True),
        (1, {}, False),
        (1, {"megatron_fsdp": True}, True),
        (2, {"flattens_gradients": True}, False),
        (3, {"flattens_gradients": True}, True),
        (3, {"torch_wrappers": True, "cuda_graphs": True}, False),
    ],
)
def test_units_of_fsdp_take_the_host_once_in_each_pass(
    stage: int, facts: dict[str, bool], held: bool
) -> None:
    model = replace(TINY, tied_embeddings=False)
    job = make_job(model, zero_stage=stage, batch=64, training=facts)
    for run in build_workload(job).stages[0].chunks[0].runs:
        # Hooks sit on modules, of which the ends have few.
        paid = held and (run.is_layer or job.framework.torch_wrappers)
        for block in (run.forward, run.backward, backward_block(run.backward, INPUT_GRADIENT)):
            assert extra_s(job, block, host_unit_s=1e-3) == pytest.approx(paid * 1e-3)
        weights = backward_block(run.backward, WEIGHT_GRADIENT)
        assert extra_s(job, weights, host_unit_s=1e-3) == 0


@pytest.mark.parametrize(
    ("stage", "facts", "hooked"),
    [
        (2, {"flattens_gradients": True}, True),
        (3, {"flattens_gradients": True}, False),
        (1, {"flattens_gradients": True}, False),
        (0, {"flattens_gradients": True}, False),
        (2, {"torch_wrappers": True}, False),
    ],
)
def test_python_goes_through_parameters_in_hooks_and_in_the_step(
    stage: int, facts: dict[str, bool], hooked: bool
) -> None:
    job = make_job(TINY, zero_stage=stage, batch=64, training=facts)
    built = build_workload(job).stages[0]
    for run in built.chunks[0].runs:
        assert extra_s(job, run.forward, host_list_s=1e-3) == 0
        paid = 1e-3 * (hooked and run.is_layer)
        assert extra_s(job, run.backward, host_list_s=1e-3) == pytest.approx(paid)
    step_s = extra_s(job, built.optimizer, host_list_s=1e-3)
    # Under ZeRO 1 hooks run once a step.
    times = 1 + (stage == 1 and "flattens_gradients" in facts)
    assert step_s == pytest.approx(1e-3 * TINY.num_layers * times)


def test_hooks_of_modules_run_again_with_what_is_recomputed() -> None:
    found = []
    for facts in ({}, {"torch_wrappers": True}):
        job = make_job(TINY, zero_stage=3, batch=64, training=facts, recompute="full")
        layer = layer_of(job)
        for block in (layer.forward, layer.backward):
            found.append(extra_s(job, block, host_unit_s=1e-3))
    assert found == pytest.approx([1e-3, 2e-3, 1e-3, 1e-3])


def test_ranks_on_other_nodes_take_their_own_time() -> None:
    job = make_job(GPT175B, nodes=4, pp=2, tp=16, sp=True)
    forward = layer_of(job).forward
    collectives = sum(isinstance(op, ir.Collective) for op in forward.ops)
    extra = extra_s(job, forward, host_tp_rank_s=1e-3, host_tp_far_rank_s=2e-3)
    assert extra == pytest.approx(collectives * (8 * 1e-3 + 8 * 2e-3))
