"""Places in the allocator that were freed and serve nothing else yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulators.jobs import GPT175B, LLAMA, make_job
from trainscout.simulators.predictor.memory import footprint
from trainscout.simulators.predictor.memory.footprint import FRAGMENTATION
from trainscout.simulators.predictor.memory.static import static_of
from trainscout.simulators.predictor.memory.unused import (
    deferred_bytes,
    flattened_bytes,
    gathered_bytes,
)
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.weights.step_end import owned_parameters


@pytest.mark.parametrize(
    ("precision", "fp32", "zero_stage", "bucket", "of_all", "of_table", "of_own"),
    [
        # One fp32 tensor travels as a 16-bit copy, whatever a bucket holds.
        ("bf16", True, 1, 0, 2, 0, 0),
        # Each larger than those before: a bucket, the embedding in fp64 (of fp16, in fp32 first),
        # the rank's partition in 16 bits and its fp32 copy, in ZeRO 3 of a billion elements.
        ("bf16", False, 1, 5e8, 0, 8, 2 + 4),
        ("fp16", False, 1, 5e8, 0, 4 + 8, 2 + 4),
        ("fp16", False, 3, 5e8, 0, 0, 4),
    ],
)
def test_deepspeed_copies_gradients_to_reduce_norm_and_update_with_them(
    precision: str,
    fp32: bool,
    zero_stage: int,
    bucket: float,
    of_all: int,
    of_table: int,
    of_own: int,
) -> None:
    facts = {
        "accumulate_grads_fp32": fp32,
        "flattens_gradients": True,
        "precision": precision,
    }
    pp = 12 if zero_stage < 3 else 1
    job = make_job(GPT175B, nodes=12, tp=2, pp=pp, zero_stage=zero_stage, training=facts)
    first = build_workload(job).stages[0]
    parameters, table = first.parameters.total, 51200 / 2 * 12288
    own = parameters / job.dp if zero_stage < 3 else 1e9
    assert own <= parameters / job.dp
    expected = 2 * bucket + of_all * parameters + of_table * table + of_own * own
    assert flattened_bytes(job, first) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("count", "zero_stage"), [(1, 3), (2, 3), (1, 2)])
def test_fsdp_has_places_of_streams(count: int, zero_stage: int) -> None:
    model, wrapped = replace(GPT175B, num_layers=2), {"torch_wrappers": True}
    batch = 128 * count
    job = make_job(model, batch=batch, micro_batch=16, zero_stage=zero_stage, training=wrapped)
    copied = replace(job, framework=replace(job.framework, copies_gathered=True))
    workload = build_workload(job)
    embedding, layer, _head = (run.held.total for run in workload.stages[0].runs)
    ours, theirs = (footprint(each, workload, 0).per_stage[0] for each in (job, copied))
    # Two layers, or one and the tied ends; and shards of gradients that the peak does not meet.
    gathered = 2 * (layer + max(embedding, layer))
    absent = static_of(job, workload.stages[0]).gradients * (count == 1)
    if zero_stage == 2:
        absent = owned_parameters(workload.stages[0].parameters, job) * 4
    # The first FSDP's copies of a layer to be reduced are among what a peak within a layer has.
    copies = 4 * layer * (zero_stage == 2)
    for memory, own in ((ours, copies), (theirs, gathered)):
        spread = int(memory.peak_allocated_bytes * FRAGMENTATION)
        unused = memory.peak_reserved_bytes - memory.peak_allocated_bytes - spread
        assert unused == pytest.approx(own + absent, abs=2**22)
    assert theirs.peak_allocated_bytes == ours.peak_allocated_bytes


@pytest.mark.parametrize(("micro_batch", "fit"), [(1, False), (16, True)])
def test_weights_are_gathered_flat(micro_batch: int, fit: bool) -> None:
    training = {"copies_shards": True}
    job = make_job(LLAMA, nodes=2, batch=128, tp=2, micro_batch=micro_batch, training=training)
    stage = build_workload(job).stages[0]
    # A share fits where logits of 16 sequences were. Of a parameter, moments of 8 bytes are there.
    expected = 2 * stage.parameters.total * ((1 if fit else 2) + 1 / job.dp - 4 / job.dp)
    assert gathered_bytes(job, stage) == pytest.approx(expected, rel=1e-6)
    for other in (make_job(LLAMA), replace(job, recipe=replace(job.recipe, zero_stage=0))):
        assert gathered_bytes(other, stage) == 0


@pytest.mark.parametrize(
    ("pp", "schedule", "passes"), [(1, "1f1b", 1), (2, "1f1b", 0), (3, "1f1b", 1), (3, "gpipe", 2)]
)
def test_passes_behind_a_message_that_waits_pile_up(pp: int, schedule: str, passes: int) -> None:
    recipe: dict[str, Any] = {"tp": 4, "pp": pp, "sp": True, "schedule": schedule}
    plain = make_job(LLAMA, nodes=pp, gpus_per_node=4, batch=4, **recipe)
    ahead = replace(plain, framework=replace(plain.framework, defers_frees=True))
    workload = build_workload(plain)
    # What the embedding, and attention and MLP of every layer make for their reduce-scatters.
    held = passes * (1 + 2 * 12 // pp) * 2 * 256 * 64
    deferred = deferred_bytes(ahead, workload.stages[0])
    assert deferred == pytest.approx(held, rel=0.002)
    ours, theirs = (footprint(job, workload, 0) for job in (plain, ahead))
    more = [
        late.peak_reserved_bytes - early.peak_reserved_bytes
        for early, late in zip(ours.per_stage, theirs.per_stage, strict=True)
    ]
    assert more[0] == pytest.approx(held, abs=2**21)
    assert not any(more[1:])
    # The allocator gives it back before it runs out.
    assert theirs.headroom_bytes == ours.headroom_bytes
    first = ours.per_stage[0]
    used = first.peak_reserved_bytes + first.kind["context"]
    full = replace(ahead, gpu=replace(ahead.gpu, memory_bytes=int(used / 0.95)))
    assert footprint(full, workload, 0).per_stage == ours.per_stage


@pytest.mark.parametrize(("cp", "way"), [(2, "p2p"), (4, "p2p"), (4, "all_gather"), (4, "a2a")])
def test_keys_sent_around_a_ring_pile_up(cp: int, way: str) -> None:
    recipe: dict[str, Any] = {"cp": cp, "cp_comm_type": way}
    job = make_job(LLAMA, nodes=1, gpus_per_node=cp, **recipe)
    workload = build_workload(job)
    model, tokens = job.model, job.sequence_length * job.recipe.micro_batch // cp
    keys = 2 * 2 * tokens * model.num_query_groups * model.hidden_size // model.num_heads
    held = model.num_layers * (cp - 1) * keys * (way == "p2p")
    deferred = deferred_bytes(job, workload.stages[0])
    # A forward pass, or as much of it as launches wait: all exchanges are alike.
    assert deferred <= held
    assert (deferred > held / 3) == (way == "p2p")
    needs = footprint(job, workload, 0)
    assert needs.per_stage[0].peak_reserved_bytes >= needs.peak_allocated_bytes + deferred


def test_no_more_piles_up_than_launches_wait() -> None:
    recipe: dict[str, Any] = {"tp": 8, "sp": True, "training": {"defers_frees": True}}
    few, many = (make_job(GPT175B, nodes=8, pp=pp, **recipe) for pp in (8, 4))
    pile, same = (deferred_bytes(job, build_workload(job).stages[0]) for job in (few, many))
    # Of six passes of 12 layers, or two of 24, less than three of 12.
    assert pile == pytest.approx(same, rel=0.05)
    assert pile < 3 * (1 + 2 * 12) * 2 * 12288 * few.sequence_length
