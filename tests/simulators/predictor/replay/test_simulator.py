"""Steps whose time follows from a formula, and what every prediction must satisfy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulators.jobs import GPT175B, LLAMA, MLA_MOE, MODELS, MOE, TINY, make_job
from tests.simulators.predictor.replay.conftest import Machine, Rates, multiply_adds
from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.collectives.price import price_collective, price_send_recv
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.tuning import Lora
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.replay.boundary import boundary_seconds
from trainscout.simulators.predictor.workload.ir import Block
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.weights.data_parallel import (
    Transfer,
    gather_parameters,
    reduce_gradients,
)
from trainscout.simulators.registry import get_simulator

# Compute only, with equal stages.
BALANCED = Rates(flops_per_s=1e12, free_head=True)


def predict(job: Job) -> Prediction:
    assert why_invalid(job) is None
    return get_simulator("replay").simulate(job)


def micro_batch_s(job: Job, rates: Rates = BALANCED) -> float:
    """Forward and backward of one micro-batch through one equal stage."""
    shard_job = make_job(job.model, tp=job.recipe.tp)
    run = build_workload(shard_job).stages[0].chunks[0].runs[1]
    products = [
        op
        for block in (run.forward, run.backward)
        for op in block.ops
        if hasattr(op, "dtype") and not hasattr(op, "communicator")
    ]
    layer_s = sum(multiply_adds(op) for op in products) / rates.flops_per_s  # type: ignore[arg-type]
    return layer_s * job.model.num_layers / job.recipe.pp


@pytest.mark.parametrize(
    ("recipe", "bubble"),
    [
        ({"pp": 1}, 0),
        # (p - 1)(f + b), whether all forwards come first or not.
        ({"pp": 4}, 3),
        ({"pp": 4, "schedule": "gpipe"}, 3),
        # Narayanan et al. 2021, section 2.2: (p - 1)(f + b) / v.
        ({"pp": 4, "vpp": 3}, 3 / 3),
        ({"pp": 2, "vpp": 6}, 1 / 6),
        ({"pp": 6, "vpp": 2, "nodes": 3}, 5 / 2),
        # Lamy-Poirier 2023, section 3: breadth-first fills as well.
        ({"pp": 4, "vpp": 3, "schedule": "gpipe"}, 3 / 3),
    ],
)
@pytest.mark.parametrize("micro_batches", [12, 240])
def test_pipeline_bubble(
    machine: Machine, recipe: dict[str, Any], bubble: float, micro_batches: int
) -> None:
    machine(BALANCED)
    nodes = recipe.get("nodes", 1)
    job = make_job(TINY, batch=micro_batches * nodes * 8 // recipe["pp"], **recipe)
    assert job.num_micro_batches == micro_batches
    one = micro_batch_s(job)
    prediction = predict(job)
    assert prediction.step_time_s == pytest.approx((micro_batches + bubble) * one, rel=1e-9)
    assert prediction.breakdown_s.get("bubble", 0) == pytest.approx(bubble * one, rel=1e-9)
    assert prediction.breakdown_s["compute"] == pytest.approx(micro_batches * one, rel=1e-9)


def test_a_blocking_transfer_lengthens_the_pass_that_sends(machine: Machine) -> None:
    send_s = 1e-3
    machine(replace(BALANCED, send_s=send_s))
    job = make_job(TINY, pp=2, batch=4 * 40)
    # Each stage sends once per micro-batch: forward from the first, backward from the last.
    expected = (40 + 1) * (micro_batch_s(job) + send_s)
    prediction = predict(job)
    assert prediction.step_time_s == pytest.approx(expected, rel=1e-9)
    assert prediction.breakdown_s["pp_communication"] == pytest.approx(40 * send_s, rel=1e-9)


def test_interleaved_messages_block_where_the_framework_does_not_overlap_them(
    machine: Machine,
) -> None:
    send_s = 1e-3
    machine(replace(BALANCED, send_s=send_s))
    framework = Framework(overlap_p2p=False)
    job = replace(make_job(TINY, pp=2, vpp=2, batch=4 * 40), framework=framework)
    # Of both chunks' outputs and gradients a stage keeps one: the loss's or the embedding's.
    sends = 3 * 40
    assert predict(job).breakdown_s["pp_communication"] == pytest.approx(sends * send_s, rel=1e-9)


def test_scattered_pipeline_messages_travel_once_and_are_gathered() -> None:
    whole = make_job(TINY, tp=4, pp=2, batch=8)
    split = replace(whole, framework=Framework(scatter_gather_p2p=True))
    seconds = [boundary_seconds(job, build_workload(job)) for job in (whole, split)]
    workload, tp = build_workload(whole), 4
    groups, sent = workload.communicators, workload.stage_boundary_bytes
    share = price_send_recv(sent // tp, False, groups["pp"], whole.gpu, whole.cluster)
    gather = price_collective("all_gather", sent, groups["tp"], whole.gpu, whole.cluster)
    assert (
        seconds[0][0]
        == price_send_recv(sent, False, groups["pp"], whole.gpu, whole.cluster).seconds
    )
    assert seconds[1][0] == share.seconds + gather.seconds
    # Sequence parallelism has cut the tensor already.
    sp = replace(make_job(TINY, tp=4, pp=2, batch=8, sp=True), framework=split.framework)
    assert boundary_seconds(sp, build_workload(sp))[0] == share.seconds


def test_a_short_transfer_hides_behind_interleaved_passes(machine: Machine) -> None:
    job = make_job(TINY, pp=2, vpp=2, batch=4 * 40)
    pass_s = micro_batch_s(job) / 2 / 3
    machine(replace(BALANCED, send_s=0.1 * pass_s))
    slower = predict(job).step_time_s
    machine(BALANCED)
    free = predict(job).step_time_s
    # Exposed while the pipeline fills and drains, not once per micro-batch.
    assert 0 < slower - free < 8 * 0.1 * pass_s


def test_the_slowest_stage_sets_the_pace(machine: Machine) -> None:
    machine(BALANCED)
    job = make_job(TINY, pp=4, batch=2 * 400, first_stage_layers=1, last_stage_layers=1)
    layer = micro_batch_s(job) / 3
    prediction = predict(job)
    # 400 micro-batches through the second long stage, and to it and back through the two before.
    assert prediction.step_time_s == pytest.approx((400 * 5 + 1 + 5) * layer, rel=1e-9)
    assert prediction.critical_stage in (1, 2)


def gradient_bytes(job: Job) -> int:
    return 4 * build_workload(job).stages[0].parameters.total


@pytest.mark.parametrize(
    ("zero_stage", "bytes_per_gradient"),
    # All-reduce; or reduce-scatter of fp32 gradients and all-gather of bf16 parameters.
    [(0, 2.0), (1, 1.0 + 0.5)],
)
def test_data_parallel_communication_at_the_end(
    machine: Machine, zero_stage: int, bytes_per_gradient: float
) -> None:
    machine(replace(BALANCED, wire_bytes_per_s=1e9))
    job = make_job(TINY, zero_stage=zero_stage, batch=8 * 10)
    moved = bytes_per_gradient * gradient_bytes(job) * 7 / 8
    exposed = predict(job).breakdown_s["dp_communication"]
    # The gradient norm's four bytes are summed as well.
    assert exposed == pytest.approx(moved / 1e9, rel=1e-4)
    assert predict(job).step_time_s == pytest.approx(10 * micro_batch_s(job) + exposed, rel=1e-9)


def test_experts_are_reduced_where_only_they_have_replicas(machine: Machine) -> None:
    # One dense copy over eight tensor-parallel ranks, two of each expert.
    machine(replace(BALANCED, wire_bytes_per_s=1e9))
    job = make_job(MOE, tp=8, sp=True, etp=1, ep=4, batch=8)
    assert (job.dp, job.expert_dp) == (1, 2)
    experts = build_workload(job).stages[0].parameters.expert
    exposed = predict(job).breakdown_s["dp_communication"]
    # fp32 gradients scattered and bf16 parameters gathered between two.
    assert exposed == pytest.approx((4 + 2) * experts / 2 / 1e9, rel=1e-4)


def test_a_single_bucket_cannot_overlap_but_many_can(machine: Machine) -> None:
    # Long backward passes, so that all buckets but the last are reduced beside them.
    rates = replace(BALANCED, wire_bytes_per_s=1e12)
    machine(rates)
    small = make_job(TINY, batch=8 * 4)
    plain = predict(small)
    overlapped = predict(replace(small, recipe=replace(small.recipe, overlap_grad_reduce=True)))
    assert overlapped.step_time_s == pytest.approx(plain.step_time_s, rel=1e-9)

    large = make_job(replace(GPT175B, num_layers=4), batch=8, tp=1)
    plain = predict(large)
    overlapped = predict(replace(large, recipe=replace(large.recipe, overlap_grad_reduce=True)))
    hidden = plain.breakdown_s["dp_communication"] - overlapped.breakdown_s["dp_communication"]
    reduce_s = gradient_bytes(large) * 7 / 8 / 1e12
    # All but what belongs to the first layer and the embedding, which are reduced last.
    assert 0.5 * reduce_s < hidden < reduce_s
    assert plain.step_time_s - overlapped.step_time_s == pytest.approx(hidden, rel=1e-6)


def test_overlap_costs_what_it_slows(machine: Machine) -> None:
    job = make_job(replace(GPT175B, num_layers=4), batch=8, overlap_grad_reduce=True)
    machine(replace(BALANCED, wire_bytes_per_s=1e12))
    free = predict(job)
    machine(replace(BALANCED, wire_bytes_per_s=1e12, slowdown=1.5))
    slowed = predict(job)
    assert "overlap_slowdown" not in free.breakdown_s
    # Half as long again for the time both run, at most the reduction's own (slowed) length.
    reduce_s = gradient_bytes(job) * 7 / 8 / 1e12
    assert 0 < slowed.breakdown_s["overlap_slowdown"] <= 0.5 * reduce_s
    assert slowed.step_time_s > free.step_time_s


@pytest.mark.parametrize("wire_bytes_per_s", [1e8, 1e10, 1e12])
@pytest.mark.parametrize(
    ("stage", "sums_whole", "gathers", "reductions"),
    # Of five micro-batches: for both passes of each or for the forward one, and with each or with
    # the last. What stays gathered until gradients are reduced comes once.
    [(3, False, 10, 5), (3, True, 10, 1), (2, False, 5, 5), (2, True, 1, 1)],
)
def test_fsdp_step_lies_between_its_bounds(
    machine: Machine,
    wire_bytes_per_s: float,
    stage: int,
    sums_whole: bool,
    gathers: int,
    reductions: int,
) -> None:
    machine(replace(BALANCED, wire_bytes_per_s=wire_bytes_per_s))
    facts = {"torch_wrappers": True, "sums_whole_grads": sums_whole}
    job = make_job(LLAMA, zero_stage=stage, batch=8 * 5, training=facts)
    compute_s = 5 * micro_batch_s(job)
    # bf16 parameters are gathered, fp32 gradients scattered.
    parameters = build_workload(job).stages[0].parameters.total
    moved = (gathers * 2 + reductions * 4) * parameters * 7 / 8
    communication_s = moved / wire_bytes_per_s
    step = predict(job).step_time_s
    assert step >= max(compute_s, communication_s) * (1 - 1e-9)
    # The gradient norm's sum is the only other communication.
    assert step <= compute_s + communication_s + 8 / wire_bytes_per_s
    if wire_bytes_per_s == 1e8:
        assert step < communication_s * 1.05


def test_gathers_that_wait_for_the_device_are_exposed_whole(machine: Machine) -> None:
    machine(replace(BALANCED, wire_bytes_per_s=1e10))
    alone = make_job(LLAMA, zero_stage=3, batch=8 * 5, training={"gathers_tensors": True})
    parameters = build_workload(alone).stages[0].parameters.total
    gathers_s = 5 * (2 + 2) * parameters * 7 / 8 / 1e10
    assert predict(alone).step_time_s >= 5 * micro_batch_s(alone) + gathers_s


def test_replicas_reduce_once_or_with_every_micro_batch(machine: Machine) -> None:
    machine(replace(BALANCED, wire_bytes_per_s=1e8))
    job = make_job(LLAMA, zero_stage=0, batch=8 * 5, overlap_grad_reduce=True)
    each = replace(job, framework=replace(job.framework, reduces_each_pass=True))
    once_s = 2 * gradient_bytes(job) * 7 / 8 / 1e8
    more_s = predict(each).step_time_s - predict(job).step_time_s
    assert more_s == pytest.approx(4 * once_s, rel=0.01)


@pytest.mark.parametrize("stage", [2, 3])
def test_reductions_that_are_waited_for_are_exposed_whole(machine: Machine, stage: int) -> None:
    machine(replace(BALANCED, wire_bytes_per_s=1e10))
    waiting = make_job(
        LLAMA, zero_stage=stage, batch=8 * 5, training={"waits_for_reductions": True}
    )
    reductions_s = 5 * gradient_bytes(waiting) * 7 / 8 / 1e10
    least_s = 5 * micro_batch_s(waiting) + reductions_s
    assert predict(waiting).step_time_s >= least_s * (1 - 1e-9)
    assert predict(make_job(LLAMA, zero_stage=stage, batch=8 * 5)).step_time_s < least_s


def test_backward_passes_that_do_not_prefetch_expose_gathers_and_reductions(
    machine: Machine,
) -> None:
    machine(replace(BALANCED, wire_bytes_per_s=1e10))
    ahead, behind = (
        make_job(LLAMA, zero_stage=3, batch=8 * 5, training={"prefetches_backward": each})
        for each in (True, False)
    )
    parameters = build_workload(behind).stages[0].parameters.total
    # The last layer's are gathered beside nothing either way, the first one's gradients reduced.
    exchanged_s = 5 * (2 * parameters + gradient_bytes(behind)) * 7 / 8 / 1e10
    least_s = 5 * micro_batch_s(behind) + exchanged_s * (1 - 1e-9)
    assert predict(behind).step_time_s >= least_s > predict(ahead).step_time_s
    kept = make_job(LLAMA, zero_stage=2, batch=8 * 5, training={"prefetches_backward": False})
    same = make_job(LLAMA, zero_stage=2, batch=8 * 5)
    assert predict(kept).step_time_s == predict(same).step_time_s


@pytest.mark.parametrize(("targets", "exposed"), [(("linear_qkv",), 1), (("linear_fc2",), 2)])
def test_gathers_hide_behind_no_layer_whose_adapters_are_units(
    machine: Machine, targets: tuple[str, ...], exposed: int
) -> None:
    given = {"lora": Lora(8, targets)}
    apart, within = (
        make_job(LLAMA, zero_stage=3, batch=8 * 5, training=given | {"wraps_adapters": each})
        for each in (True, False)
    )
    machine(BALANCED)
    compute_s = predict(apart).step_time_s
    machine(replace(BALANCED, wire_bytes_per_s=1e10))
    parameters = build_workload(apart).stages[0].parameters.held.total
    exposed_s = 5 * exposed * 2 * parameters * 7 / 8 / 1e10
    assert predict(apart).step_time_s >= compute_s + exposed_s * 0.95 > predict(within).step_time_s


def test_one_root_unit_is_gathered_first_and_reduced_last(machine: Machine) -> None:
    # Layers take so long that what is exchanged beside them hides.
    machine(Rates(flops_per_s=1e9, free_head=True, wire_bytes_per_s=1e9))
    apart, joined = (
        make_job(LLAMA, zero_stage=3, batch=8 * 5, training={"one_root_unit": unit})
        for unit in (False, True)
    )
    head = build_workload(apart).stages[0].chunks[0].runs[-1].parameters.total
    # The head's fp32 gradients come after the last layer's. Its parameters come before the first
    # layer, which takes what gathering them again between the passes of a free head does.
    added_s = 5 * 4 * head * 7 / 8 / 1e9
    assert predict(joined).step_time_s - predict(apart).step_time_s == pytest.approx(added_s)


def test_a_launch_bound_step_takes_its_launches(machine: Machine) -> None:
    machine(Rates(flops_per_s=np.inf, launch_s=1e-5))
    job = make_job(TINY, batch=8 * 6)
    stage = build_workload(job).stages[0]

    def launches(block: Block) -> int:
        return sum(getattr(op, "launches", 1) for op in block.ops if not hasattr(op, "tag"))

    passes = sum(
        run.count * (launches(run.forward) + launches(run.backward))
        for run in stage.chunks[0].runs
    )
    # After the last pass: gradients are reduced and finished, parameters updated and gathered.
    transfer = Transfer.of(job)
    exchanges = [
        exchange(stage.parameters, transfer) for exchange in (reduce_gradients, gather_parameters)
    ]
    ends = sum(launches(block) for block in (*exchanges, stage.finish, stage.optimizer))
    prediction = predict(job)
    assert prediction.breakdown_s["host"] == pytest.approx((6 * passes + ends) * 1e-5, rel=1e-9)


SOME: list[tuple[Model, dict[str, Any]]] = [
    (GPT175B, {"nodes": 12, "batch": 1536, "tp": 8, "pp": 12, "sp": True, "vpp": 2}),
    (GPT175B, {"nodes": 12, "batch": 1536, "tp": 8, "pp": 6, "recompute": "full"}),
    (LLAMA, {"zero_stage": 3, "batch": 64}),
    (LLAMA, {"tp": 2, "cp": 2, "pp": 2, "sp": True, "tp_comm_overlap": True}),
    (MOE, {"ep": 8, "nodes": 2, "overlap_grad_reduce": True, "overlap_param_gather": True}),
    (MLA_MOE, {"tp": 2, "ep": 4, "sp": True, "nodes": 2, "pp": 2, "precision": "fp8"}),
]


@pytest.mark.parametrize(("model", "arguments"), SOME)
def test_a_prediction_is_consistent_with_itself(model: Model, arguments: dict[str, Any]) -> None:
    job = make_job(model, **arguments)
    prediction = predict(job)
    seconds, gpus = prediction.step_time_s, job.world_size
    assert sum(prediction.breakdown_s.values()) == pytest.approx(seconds, rel=1e-9)
    assert all(part > 0 for part in prediction.breakdown_s.values())
    flops, peak = step_flops(job), job.gpu.peak(job.precision) * gpus
    assert prediction.mfu == pytest.approx(flops.model / seconds / peak)
    assert prediction.hfu == pytest.approx(flops.hardware / seconds / peak)
    assert prediction.mfu_causal == pytest.approx(flops.causal / seconds / peak)
    assert 0 < prediction.mfu_causal < prediction.mfu <= prediction.hfu < 1
    tokens = job.training.global_batch_size * job.sequence_length
    assert prediction.tokens_per_s == pytest.approx(tokens / seconds)
    assert prediction.tokens_per_s_per_gpu * gpus == pytest.approx(prediction.tokens_per_s)
    assert prediction.cost_per_step_usd == pytest.approx(seconds / 3600 * gpus * 2.0)
    assert prediction.cost_per_billion_tokens_usd == pytest.approx(
        prediction.cost_per_step_usd * 1e9 / tokens
    )
    assert prediction.cost_of_run_usd == pytest.approx(
        prediction.cost_per_step_usd * job.training.tokens / tokens
    )
    assert sum(prediction.evidence_share.values()) == pytest.approx(1)
    assert prediction.fits == (prediction.memory.band == "fits")
    assert 0 <= prediction.critical_stage < job.recipe.pp


def test_a_step_waits_for_its_data() -> None:
    """Each of four ranks takes 16 samples a step from a loader of its own."""
    ready, job = predict(make_job(tp=2)), make_job(tp=2, training={"loader_samples_per_s": 8.0})
    prediction = predict(job)
    assert ready.step_time_s < 2 == prediction.step_time_s == job.loading_s
    assert prediction.breakdown_s.pop("waiting_for_data") == 2 - ready.step_time_s
    assert prediction.breakdown_s == ready.breakdown_s
    assert prediction.mfu == pytest.approx(ready.mfu * ready.step_time_s / 2)
    assert prediction.interval_s == (2, 2)
    soon = make_job(tp=2, training={"loader_samples_per_s": 16 / ready.step_time_s * 1.0001})
    assert replace(predict(soon), assumptions=(), interval_s=None) == replace(
        ready, assumptions=(), interval_s=None
    )
    low, high = ready.interval_s or (0, 0)
    assert predict(soon).interval_s == (max(low, soon.loading_s), high)


@pytest.mark.parametrize(("model", "arguments"), SOME[:3])
def test_same_question_same_answer(model: Model, arguments: dict[str, Any]) -> None:
    job = make_job(model, **arguments)
    assert predict(job) == predict(job)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    model=st.sampled_from(MODELS),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    vpp=st.sampled_from([1, 3]),
)
def test_never_faster_than_its_arithmetic(machine: Machine, model: Model, **recipe: Any) -> None:
    job = make_job(model, nodes=4, sp=recipe["tp"] > 1, batch=256, **recipe)
    if why_invalid(job) is not None:
        return
    machine(Rates(flops_per_s=1e12, wire_bytes_per_s=1e11))
    # Causal attention may skip half of the square that the convention counts.
    flops = step_flops(job).hardware
    core = step_flops(replace(job, recipe=replace(job.recipe, recompute="selective"))).hardware
    skipped = 4 * (core - step_flops(job).model) / 2
    least = (flops - skipped) / job.world_size / 1e12
    assert predict(job).step_time_s >= least * (1 - 1e-9)
