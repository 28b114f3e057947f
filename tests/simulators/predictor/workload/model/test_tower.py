"""Towers in front of a language model: operations, parameters and FLOPs against closed forms."""

from dataclasses import replace
from typing import Any

import pytest

from tests.simulators.jobs import LLAMA, SEEING, TOWER, make_job
from trainscout.simulators.predictor.answer.flops import step_flops, tower_flops
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.tower import Convolution
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload.ir import Attention, Gemm, kernel_flops
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.model.ends import first_blocks
from trainscout.simulators.predictor.workload.residual_stream.embedding import embedding_blocks
from trainscout.simulators.predictor.workload.shard import Shard


def test_a_tower_counts_its_layers_patches_positions_and_projector() -> None:
    with_, without = (
        sum(stage.parameters.total for stage in build_workload(make_job(model)).stages)
        for model in (SEEING, LLAMA)
    )
    h, f = 64, 128
    layer = 4 * h * h + 4 * h + 2 * h * f + f + h + 2 * 2 * h
    assert with_ - without == 2 * layer + (48 + 16 + 1) * h + 256 * 256


def test_its_operations_do_what_it_counts() -> None:
    shard = Shard.of(make_job(SEEING))
    forward, backward = first_blocks(shard)
    plain, _ = embedding_blocks(shard)
    assert len(plain.ops) < len(forward.ops)
    products = [op for op in forward.ops if isinstance(op, Gemm | Attention)]
    assert sum(map(kernel_flops, products)) == tower_flops(TOWER) * shard.batch
    assert all(not op.causal for op in products if isinstance(op, Attention))
    assert forward.saved_bytes == -backward.saved_bytes > 0
    job = make_job(SEEING)
    more = step_flops(job).model - step_flops(replace(job, model=LLAMA)).model
    assert more == pytest.approx(3 * tower_flops(TOWER) * job.training.global_batch_size)


@pytest.mark.parametrize(
    ("changes", "weights"),
    [
        # A gated MLP at the end of the projector: two products into its inner width.
        ({"projector": (256, 96, 256), "gated_projector": True}, 3 * 256 * 96 - 256 * 256),
        # A convolution of 12 values to 5 channels, four times a patch.
        ({"stem": (Convolution(12, 5, 4),)}, 12 * 5),
        # The same four times a token, and another, between the layers and the projector.
        ({"behind": (Convolution(12, 5, 4), Convolution(20, 7, 1))}, 12 * 5 + 20 * 7),
        # Two layers of a Conformer: an MLP with biases, relative positions, a gate, a convolution.
        (
            {"taps": 5, "chunk": 8},
            2 * (2 * 64 * 128 + 128 + 64 + 4 * 64 * 64 + (5 + 3) * 64),
        ),
        # Patches as they are, without layers and without their projection.
        ({"num_layers": 0, "patch_size": 0, "positions": 0}, None),
    ],
)
def test_other_ends_hold_and_do_what_they_count(
    changes: dict[str, Any], weights: int | None
) -> None:
    tower = replace(TOWER, **changes)
    model = replace(SEEING, towers=(tower,))
    held, before, without = (
        sum(stage.parameters.total for stage in build_workload(make_job(each)).stages)
        for each in (model, SEEING, LLAMA)
    )
    if weights is None:
        assert held - without == tower.projector_weights + tower.hidden_size
    else:
        assert held - before == weights
    shard = Shard.of(make_job(model))
    forward, backward = first_blocks(shard)
    products = [op for op in forward.ops if isinstance(op, Gemm | Attention)]
    assert sum(map(kernel_flops, products)) == tower_flops(tower) * shard.batch
    assert forward.saved_bytes == -backward.saved_bytes > 0


def test_only_the_first_stage_has_it_and_images_cost_in_proportion() -> None:
    job = make_job(SEEING, pp=2)
    first, last = build_workload(job).stages
    plain = build_workload(replace(job, model=LLAMA)).stages
    assert last == plain[1]
    assert first.parameters.total > plain[0].parameters.total
    blocks = []
    for images in (1, 4):
        model = replace(SEEING, towers=(replace(TOWER, images=images),))
        blocks.append(first_blocks(Shard.of(make_job(model)))[0])
    cores = [[op for op in block.ops if isinstance(op, Attention)] for block in blocks]
    assert [op.batch for op in cores[1]] == [4 * op.batch for op in cores[0]]
    step = ReplaySimulator().without_error_bar(job)
    alone = ReplaySimulator().without_error_bar(replace(job, model=LLAMA))
    assert step.step_time_s > alone.step_time_s
    assert (
        step.memory.per_stage[0].kind["activations"]
        > alone.memory.per_stage[0].kind["activations"]
    )


def test_impossible_towers_are_refused_by_field() -> None:
    for changes, field in (
        ({"num_heads": 7}, "num_heads"),
        ({"num_query_groups": 3}, "num_query_groups"),
        ({"patches": 18}, "merged"),
        ({"projector": (256, 0)}, "projector"),
        ({"num_layers": -1}, "num_layers"),
        ({"stem": (Convolution(9, 0, 1),)}, "stem.0.channels"),
        ({"behind": (Convolution(9, 1, 0),)}, "behind.0.places"),
        ({"taps": -1}, "taps"),
        ({"chunk": 0}, "chunk"),
        ({"gated_projector": True, "projector": (256, 256)}, "gated_projector"),
    ):
        with pytest.raises(InputError) as caught:
            replace(SEEING, towers=(replace(TOWER, **changes),)).check()
        assert caught.value.field == f"model.towers.0.{field}"
    narrow = replace(SEEING, towers=(replace(TOWER, num_heads=4),))
    violation = why_invalid(make_job(narrow, tp=8))
    assert violation is not None
    assert "vision tower" in violation.reason
