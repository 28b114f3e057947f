"""Programs that depend on how a framework shards parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulators.jobs import LLAMA, MOE, TINY, make_job
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.tuning import Dpo
from trainscout.simulators.predictor.workload.ir import Alloc, Block, Streaming
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.parameters import LocalParameters
from trainscout.simulators.predictor.workload.program import Run
from trainscout.simulators.predictor.workload.weights.data_parallel import Transfer


def test_fsdp2_copies_what_it_gathers_in_both_passes() -> None:
    plain = make_job(TINY, zero_stage=3)
    copying = replace(plain, framework=Framework(copies_gathered=True))
    for one, other in zip(
        build_workload(plain).stages[0].chunks[0].runs,
        build_workload(copying).stages[0].chunks[0].runs,
        strict=True,
    ):
        for before, after in ((one.forward, other.forward), (one.backward, other.backward)):
            copy, *rest = after.ops
            assert tuple(rest) == before.ops
            assert isinstance(copy, Streaming)
            assert copy.bytes == 2 * 2 * one.parameters.total
    # Nothing is gathered that a rank keeps.
    kept = replace(make_job(TINY, zero_stage=1), framework=copying.framework)
    assert build_workload(kept) == build_workload(make_job(TINY, zero_stage=1))


def test_gradients_may_travel_wider_than_they_are_kept() -> None:
    narrow = make_job(TINY, training={"accumulate_grads_fp32": False})
    wide = replace(narrow, framework=replace(narrow.framework, reduce_grads_fp32=True))
    kept = make_job(TINY, training={"accumulate_grads_fp32": True})
    assert Transfer.of(narrow).gradient_bytes == 2
    assert Transfer.of(wide).gradient_bytes == Transfer.of(kept).gradient_bytes == 4
    # Or narrower: what DeepSpeed flattens it reduces as a copy in 16 bits.
    flat = replace(kept, framework=replace(kept.framework, flattens_gradients=True))
    assert Transfer.of(flat).gradient_bytes == 2
    assert build_workload(wide) == build_workload(narrow)


def test_offloaded_layers_leave_nothing_and_need_as_much_while_they_run() -> None:
    plain, away = make_job(TINY), make_job(TINY, offloaded_layers=2)
    (layers,) = (run for run in runs_of(plain) if run.forward.name == "layer_forward")
    gone, kept = (run for run in runs_of(away) if run.forward.name == "layer_forward")
    assert (gone.count, kept.count) == (2, layers.count - 2)
    assert kept.forward == layers.forward
    assert gone.forward.saved_bytes == gone.backward.saved_bytes == 0
    assert gone.forward.peak_bytes == layers.forward.peak_bytes
    held = layers.forward.saved_bytes
    assert gone.backward.peak_bytes == layers.backward.peak_bytes + held
    assert build_workload(away).stages[0].chunks[0].copied_bytes == 2 * held


def test_modules_that_are_offloaded_leave_no_input_of_theirs() -> None:
    """In every layer of every stage, where the module is: a dense layer has no experts."""
    plain, away = make_job(MOE, pp=2), make_job(MOE, pp=2, offload_modules="core_attn+moe_act")
    chunk, copying = (build_workload(job).stages[0].chunks[0] for job in (plain, away))
    kept = {"q", "k", "v", "core_output", "expert_fc1_output"}
    gone = 0
    for before, after in zip(chunk.runs, copying.runs, strict=True):
        allocs = [op for op in before.forward.ops if isinstance(op, Alloc) and op.tag in kept]
        held = sum(op.bytes for op in allocs)
        gone += before.count * held
        assert after.forward.saved_bytes == before.forward.saved_bytes - held
        assert after.backward.saved_bytes == -after.forward.saved_bytes
        assert after.backward.peak_bytes == before.backward.peak_bytes + held
    assert copying.copied_bytes == gone > 0


def bytes_of(name: str, block: Block) -> int:
    return sum(op.bytes for op in block.ops if isinstance(op, Streaming) and op.name == name)


def runs_of(job: Job) -> tuple[Run, ...]:
    return build_workload(job).stages[0].chunks[0].runs


def test_one_root_unit_holds_both_ends_and_travels_with_the_first() -> None:
    apart = runs_of(make_job(LLAMA, zero_stage=3))
    joined = runs_of(make_job(LLAMA, zero_stage=3, training={"one_root_unit": True}))
    # Passes of a frozen model beside it have ends of their own.
    beside = {"one_root_unit": True, "dpo": Dpo(kto=True)}
    # KTO's other answers go first, its reference last.
    assert runs_of(make_job(LLAMA, zero_stage=3, training=beside))[3:6] == joined
    assert joined[0].parameters == apart[0].parameters + apart[-1].parameters
    assert joined[-1].parameters == LocalParameters()
    assert [run.kept for run in joined] == [True] + [False] * (len(joined) - 1)
    assert joined[1:-1] == apart[1:-1]
    # Nothing but FSDP has units; a stage that has one end only has no other to share with.
    for recipe in ({"zero_stage": 1}, {"pp": 2}):
        for run in runs_of(make_job(LLAMA, training={"one_root_unit": True}, **recipe)):
            assert not run.kept


def test_what_is_kept_is_copied_once() -> None:
    facts = {"one_root_unit": True, "copies_gathered": True}
    first, layers, _ = runs_of(make_job(LLAMA, zero_stage=3, training=facts))
    blocks = (first.forward, first.backward, layers.forward, layers.backward)
    copies = [bytes_of("gathered_copy", block) for block in blocks]
    layer = 4 * layers.parameters.total
    assert copies == [4 * first.parameters.total, 0, layer, layer]
    freed, *_ = runs_of(make_job(LLAMA, zero_stage=3, training=facts | {"reshards_root": True}))
    assert bytes_of("gathered_copy", freed.backward) == copies[0]


FSDP1 = {"torch_wrappers": True}
FSDP2 = FSDP1 | {"copies_gathered": True, "reduce_grads_fp32": True}


@pytest.mark.parametrize(
    ("facts", "stage", "moved"),
    [
        # Each move of DeepSpeed's reads and writes 16 bits.
        ({"flattens_gradients": True}, 1, 0),
        ({"flattens_gradients": True}, 2, 2 * 4),
        ({"flattens_gradients": True}, 3, 3 * 4),
        # Put together and divided; cast in between; copied once, as what it is reduced as.
        (FSDP1, 1, 0),
        (FSDP1, 2, 4 + 4),
        (FSDP1, 3, 4 + 4),
        (FSDP1 | {"reduce_grads_fp32": True}, 3, 4 + 6 + 8),
        (FSDP2, 3, 2 + 4),
        # Put together and added; added in fp32.
        (FSDP1 | {"sums_whole_grads": True}, 3, 4 + 6),
        (FSDP2 | {"sums_whole_grads": True}, 2, 2 + 8),
    ],
)
def test_gradients_that_are_flattened_move_before_they_are_reduced(
    facts: dict[str, Any], stage: int, moved: int
) -> None:
    facts = {"accumulate_grads_fp32": False, **facts}
    for run in runs_of(make_job(LLAMA, zero_stage=stage, training=facts)):
        assert bytes_of("flatten_grads", run.backward) == moved * run.parameters.total


def test_ddp_copies_gradients_into_buckets_and_back() -> None:
    facts = {"torch_wrappers": True, "accumulate_grads_fp32": False}
    stage = build_workload(make_job(LLAMA, zero_stage=0, training=facts)).stages[0]
    total = sum(run.count * run.parameters.total for run in stage.chunks[0].runs)
    assert bytes_of("bucket_copies", stage.finish) == 4 * 2 * total


@pytest.mark.parametrize(("gpus", "moved"), [(8, 2 * 4), (1, 0)])
def test_megatron_reads_gradients_for_nans_and_divides_them_by_its_replicas(
    gpus: int, moved: int
) -> None:
    facts = {"checks_gradients": True, "divides_gradients": True}
    stage = build_workload(make_job(LLAMA, gpus_per_node=gpus, training=facts)).stages[0]
    total = sum(run.count * run.parameters.total for run in stage.chunks[0].runs)
    assert bytes_of("check_grads", stage.finish) == 4 * total
    assert bytes_of("divide_grads", stage.finish) == moved * total
    # Nothing waits for the host where whole steps are replayed.
    graphed = make_job(LLAMA, gpus_per_node=gpus, training=facts, cuda_graphs=True)
    assert bytes_of("check_grads", build_workload(graphed).stages[0].finish) == 0


@pytest.mark.parametrize(
    ("facts", "zero_stage", "batch", "added"),
    [
        (FSDP1, 0, 16, True),
        # Autograd keeps the first gradient, FSDP reduces every one.
        (FSDP1, 0, 8, False),
        (FSDP1, 3, 16, False),
        ({}, 0, 8, True),
    ],
)
def test_gradients_are_added_where_there_is_one_before(
    facts: dict[str, Any], zero_stage: int, batch: int, added: bool
) -> None:
    facts = {"fused_wgrad": False, "accumulate_grads_fp32": False, **facts}
    job = make_job(LLAMA, zero_stage=zero_stage, training=facts, batch=batch)
    ops = [op for run in runs_of(job) for op in run.backward.ops]
    assert any("accumulate" in getattr(op, "name", "") for op in ops) is added
