"""Stages, chunks and runs of whole jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.jobs import GPT175B, LLAMA, MLA_MOE, MODELS, TINY, make_job
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.workload.ir import Block, Collective, Streaming
from trainscout.simulators.predictor.workload.megatron import build_workload, layers_by_stage
from trainscout.simulators.predictor.workload.program import Chunk


@given(
    model=st.sampled_from(MODELS),
    pp=st.sampled_from([1, 2, 3, 4, 6]),
    vpp=st.sampled_from([1, 2, 3]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    recompute_layers=st.sampled_from([None, 1, 2]),
)
def test_every_layer_runs_once(model: Model, pp: int, vpp: int, **recipe: Any) -> None:
    job = make_job(model, nodes=3, batch=144, pp=pp, vpp=vpp, **recipe)
    if why_invalid(job) is not None:
        return
    ranges = sorted(each for stage in layers_by_stage(job) for each in stage)
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == model.num_layers
    workload = build_workload(job)
    names: dict[str, int] = {}
    for stage in workload.stages:
        assert len(stage.chunks) == vpp
        for chunk in stage.chunks:
            for run in chunk.runs:
                names[run.forward.name] = names.get(run.forward.name, 0) + run.count
    assert names["embedding_forward"] == names["head_forward"] == 1
    dense = sum(not model.is_moe_layer(layer) for layer in range(model.num_layers))
    assert names.get("layer_forward", 0) == dense
    assert names.get("moe_layer_forward", 0) == model.num_layers - dense


def layer_ranges(job: Job) -> list[list[tuple[int, int]]]:
    return layers_by_stage(job)


def test_interleaving_deals_layers_out_chunk_by_chunk() -> None:
    # Narayanan et al. 2021, figure 4: device 1 holds layers 1-2 and 9-10 of 16 on 4 devices.
    assert layer_ranges(make_job(GPT175B, pp=4, vpp=8))[1][:2] == [(3, 6), (15, 18)]
    assert layer_ranges(make_job(TINY, pp=2, vpp=3)) == [
        [(0, 2), (4, 6), (8, 10)],
        [(2, 4), (6, 8), (10, 12)],
    ]


def test_equal_stages_are_one_object_and_different_ones_differ() -> None:
    stages = build_workload(make_job(TINY, nodes=2, pp=4)).stages
    assert stages[1] is stages[2]
    assert len({stage.digest for stage in stages}) == 3
    # The same question asked again has equal content.
    again = build_workload(make_job(TINY, nodes=2, pp=4)).stages
    assert [stage.digest for stage in again] == [stage.digest for stage in stages]


def test_first_dense_layers_make_the_first_stage_its_own() -> None:
    stages = build_workload(make_job(MLA_MOE, pp=4)).stages
    runs = [run.forward.name for run in stages[0].chunks[0].runs]
    assert runs == ["embedding_forward", "layer_forward", "moe_layer_forward"]
    assert stages[1] is stages[2]


def block_names(chunk: Chunk) -> list[tuple[str, int, int]]:
    return [(run.forward.name, run.count, run.forward.saved_bytes) for run in chunk.runs]


def test_block_recomputation_starts_at_the_front_of_each_chunk() -> None:
    job = make_job(LLAMA, pp=2, vpp=2, recompute="full", recompute_layers=2)
    whole = make_job(LLAMA, pp=2, vpp=2, recompute="full")
    chunks = [chunk for stage in build_workload(job).stages for chunk in stage.chunks]
    (_, *layers, _) = [entry for chunk in chunks for entry in block_names(chunk)]
    kept = build_workload(whole).stages[0].chunks[1].runs[0].forward.saved_bytes
    assert [count for _, count, _ in layers] == [2, 1] * 4
    assert all((saved == kept) == (count == 2) for _, count, saved in layers)


@pytest.mark.parametrize(("sp", "expected"), [(True, 6_291_456), (False, 50_331_648)])
def test_bytes_between_stages(sp: bool, expected: int) -> None:
    # As recorded from Megatron for GPT-175B at tp=8.
    job = make_job(GPT175B, nodes=12, batch=1536, tp=8, pp=12, sp=sp)
    assert build_workload(job).stage_boundary_bytes == expected


def collective_bytes(block: Block, name: str) -> list[int]:
    return [op.bytes for op in block.ops if isinstance(op, Collective) and op.name == name]


@pytest.mark.parametrize("model", [TINY, replace(TINY, tied_embeddings=False, num_mtp_layers=1)])
def test_embeddings_of_both_ends_are_summed_between_the_ends_only(model: Model) -> None:
    stages = build_workload(make_job(model, nodes=2, pp=4, tp=2)).stages
    gradient = TINY.padded_vocab_size(2) // 2 * 256 * 4
    found = [collective_bytes(stage.finish, "embedding_grads") for stage in stages]
    assert found == [[gradient], [], [], [gradient]]
    for job in (make_job(model, tp=2), make_job(LLAMA, pp=4)):
        for stage in build_workload(job).stages:
            assert not collective_bytes(stage.finish, "embedding_grads")


@pytest.mark.parametrize(
    ("zero_stage", "bytes_per_parameter"),
    # Adam reads gradient, master and moments and writes master and moments: 4 + 12 + 12 bytes.
    [(0, 28), (1, 28 / 8), (3, 28 / 8)],
)
def test_optimizer_traffic_is_sharded(zero_stage: int, bytes_per_parameter: float) -> None:
    stage = build_workload(make_job(TINY, zero_stage=zero_stage)).stages[0]
    update = next(op for op in stage.optimizer.ops if op.name == "update")  # type: ignore[union-attr]
    assert isinstance(update, Streaming)
    assert update.bytes == pytest.approx(bytes_per_parameter * stage.parameters.total, rel=1e-5)


@pytest.mark.parametrize(("zero_stage", "share"), [(0, 1), (1, 1), (2, 1 / 8), (3, 1 / 8)])
def test_only_gradients_that_are_kept_are_zeroed(zero_stage: int, share: float) -> None:
    stage = build_workload(make_job(TINY, zero_stage=zero_stage)).stages[0]
    zero = next(op for op in stage.optimizer.ops if op.name == "zero_grads")  # type: ignore[union-attr]
    assert isinstance(zero, Streaming)
    assert zero.bytes == pytest.approx(4 * share * stage.parameters.total, rel=1e-5)


def test_only_expert_layers_have_their_exchanges_put_beside_kernels() -> None:
    job = make_job(MLA_MOE, ep=4, overlap_moe_expert_parallel_comm=True)
    (stage,) = build_workload(job).stages
    for run in stage.chunks[0].runs:
        overlapped = any(getattr(op, "overlaps", 0) for op in run.forward.ops)
        assert overlapped == (run.forward.name == "moe_layer_forward")


def test_recomputation_tapers_off_along_the_pipeline():
    job = make_job(LLAMA, pp=4, recompute="full", recompute_layers=2, recompute_taper=1)
    even = make_job(LLAMA, pp=4, recompute="full", recompute_layers=2)
    kept = [stage.chunks[0].saved_bytes for stage in build_workload(job).stages]
    before = [stage.chunks[0].saved_bytes for stage in build_workload(even).stages]
    assert kept[0] == before[0]
    assert all(more > less for more, less in zip(kept[1:], before[1:], strict=True))
    assert kept[2] > kept[1]
