"""Bytes that a layer's collectives carry, under every way to shard it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests.simulators.jobs import LLAMA, MLA_MOE, MODELS, TINY, make_job
from tests.simulators.predictor.workload.blocks import flops, wire_bytes
from trainscout.simulators.predictor.question.layers import DENSE_LAYER
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.workload.ir import (
    Attention,
    Block,
    Collective,
    Gemm,
    SendRecv,
    Streaming,
)
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.shard import Shard


@pytest.mark.parametrize("fusion", ["eager", "compiled"])
def test_layers_with_inputs_of_their_own_gather_and_reduce_each(fusion: str) -> None:
    facts = {"separate_projections": True, "keeps_gathered": True, "fusion": fusion}
    full = LLAMA.sequence_length * LLAMA.hidden_size * 2
    for sp in (False, True):
        one, other = (
            layer_blocks(
                Shard.of(make_job(LLAMA, tp=2, sp=sp, training={**facts, "inputs_apart": apart})),
                DENSE_LAYER,
                "none",
            )
            for apart in (False, True)
        )
        # Queries, keys and values are two more than one, gate and input of the MLP one more; a
        # compiler makes one of gathers of the same tensor, and cannot of sums of different ones.
        gathered = 3 * full if sp and fusion == "eager" else 0
        assert wire_bytes(other[0], "tp") == wire_bytes(one[0], "tp") + gathered
        reduced = 3 * full * (1 if sp else 2)
        assert wire_bytes(other[1], "tp") == wire_bytes(one[1], "tp") + reduced


def test_without_separate_projections_there_is_one_input() -> None:
    one, other = (
        layer_blocks(
            Shard.of(make_job(LLAMA, tp=2, training={"inputs_apart": apart})), DENSE_LAYER, "none"
        )
        for apart in (False, True)
    )
    assert one == other


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_overlapping_cuts_communication_but_loses_none(model: Model) -> None:
    plain = Shard.of(make_job(model, tp=4, sp=True))
    cut = replace(plain, tp_comm_overlap=True)
    for one, other in zip(
        layer_blocks(plain, DENSE_LAYER, "none"),
        layer_blocks(cut, DENSE_LAYER, "none"),
        strict=True,
    ):
        assert wire_bytes(one, "tp") == wire_bytes(other, "tp")
        assert wire_bytes(other, "tp", exposed=True) < wire_bytes(one, "tp", exposed=True)


@pytest.mark.parametrize("model", [TINY, MLA_MOE], ids=lambda model: model.name)
def test_heads_are_exchanged_for_the_sequence_and_back(model: Model) -> None:
    ring = Shard.of(make_job(model, cp=4))
    forward, backward = layer_blocks(replace(ring, cp_comm_type="a2a"), DENSE_LAYER, "none")
    d, d_v = model.qk_head_dim, model.v_head_dim
    # Q, K, V and the output of 16 tokens, all heads, two bytes an element.
    moved = 16 * model.num_heads * (2 * d + 2 * d_v) * 2
    assert wire_bytes(forward, "cp") == wire_bytes(backward, "cp") == moved
    for way in (forward, backward):  # Each by itself.
        assert sum(isinstance(op, Collective) for op in way.ops) == 4
    (whole,) = (op for op in forward.ops if isinstance(op, Attention))
    assert (whole.heads, whole.seq_q, whole.seq_k, whole.causal) == (2, 64, 64, True)
    # The ring's pieces do the same work on every head.
    pieces = [
        op for op in layer_blocks(ring, DENSE_LAYER, "none")[0].ops if isinstance(op, Attention)
    ]
    pairs = sum(op.heads * op.seq_q * op.seq_k / (2 if op.causal else 1) for op in pieces)
    assert pairs == whole.heads * 64 * 64 / 2


def test_packed_tokens_are_put_in_order_by_parts_of_each_sequence() -> None:
    def launches(order: bool, *packed: int) -> list[int]:
        facts = {"order_by_document": order, "packed_lengths": packed}
        sharded = Shard.of(make_job(TINY, cp=4, cp_comm_type="a2a", training=facts))
        return [
            sum(op.launches for op in block.ops if isinstance(op, Streaming))
            for block in layer_blocks(sharded, DENSE_LAYER, "none")
        ]

    # Two parts on each of four ranks; nine kernels and two numbers read of each part of Q, K and
    # V, which are as much as two launches each, and five and two of the output's; back likewise.
    parts = 2 * 4 * TINY.sequence_length // 16
    (ahead, back), before = launches(True, 16), launches(False, 16)
    assert ahead - before[0] == parts * (3 * 13 + 9)
    assert back - before[1] == parts * (13 + 3 * 9)
    assert launches(True) == launches(False)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_only_kernels_run_beside_communication(model: Model, precision: str) -> None:
    # What prices a block takes the operations beside a communication for computation.
    for recipe in (
        {"tp": 4},
        {"tp": 4, "sp": True},
        {"tp": 4, "sp": True, "tp_comm_overlap": True},
    ):
        shard = Shard.of(make_job(model, cp=2, precision=precision, **recipe))
        other = replace(shard, batch_first=True, separate_projections=True)
        for each, recompute in product((shard, other), ("none", "selective", "full")):
            for block in layer_blocks(each, DENSE_LAYER, recompute):
                for index, op in enumerate(block.ops):
                    if isinstance(op, Collective | SendRecv):
                        beside = block.ops[index + 1 : index + 1 + op.overlaps]
                        assert len(beside) == op.overlaps
                        assert all(isinstance(kernel, Gemm | Attention) for kernel in beside)


def test_input_gradients_are_summed_after_the_weight_gradient_where_not_overlapped() -> None:
    plain = Shard.of(make_job(TINY, tp=4))
    old = replace(plain, overlap_tp_gradients=False)
    forward, backward = layer_blocks(plain, DENSE_LAYER, "none")
    old_forward, old_backward = layer_blocks(old, DENSE_LAYER, "none")
    assert old_forward == forward
    assert wire_bytes(old_backward, "tp") == wire_bytes(backward, "tp")
    assert wire_bytes(backward, "tp", exposed=True) == 0
    assert wire_bytes(old_backward, "tp", exposed=True) == wire_bytes(backward, "tp")


def test_without_overlap_sequence_parallelism_waits_for_every_exchange() -> None:
    plain = Shard.of(make_job(TINY, tp=4, sp=True))
    _, backward = layer_blocks(replace(plain, overlap_tp_gradients=False), DENSE_LAYER, "none")
    assert wire_bytes(backward, "tp", exposed=True) == wire_bytes(backward, "tp")
    assert wire_bytes(backward, "tp") == wire_bytes(
        layer_blocks(plain, DENSE_LAYER, "none")[1], "tp"
    )


def moved(block: Block, ending: str) -> list[int]:
    return [op.bytes for op in block.ops if isinstance(op, Streaming) and op.name.endswith(ending)]


def test_batch_first_copies_what_is_gathered_and_scattered() -> None:
    plain = Shard.of(
        make_job(LLAMA, tp=4, sp=True, micro_batch=2, training={"keeps_gathered": True})
    )
    whole = plain.tokens * LLAMA.hidden_size * plain.element_bytes
    for block, ordered in zip(
        layer_blocks(plain, DENSE_LAYER, "none"),
        layer_blocks(replace(plain, batch_first=True), DENSE_LAYER, "none"),
        strict=True,
    ):
        # Two gathers and two scatters a pass, each tensor read and written once more.
        assert moved(block, "_order") == []
        assert moved(ordered, "_order") == [2 * whole] * 4
        assert wire_bytes(ordered, "tp") == wire_bytes(block, "tp")
    overlapped = replace(plain, batch_first=True, tp_comm_overlap=True)
    for block in layer_blocks(overlapped, DENSE_LAYER, "none"):
        assert moved(block, "_order") == []
        # Pieces of each scattered sum arrive from all ranks and are added up.
        assert [
            each for name in ("reduce_sum", "gather_grad_sum") for each in moved(block, name)
        ] == [whole + whole // 4] * 2


def test_sums_of_several_products_are_scattered_alone() -> None:
    packed = Shard.of(make_job(LLAMA, tp=4, sp=True, training={"keeps_gathered": True}))
    packed = replace(packed, batch_first=True, tp_comm_overlap=True)
    _, backward = layer_blocks(replace(packed, separate_projections=True), DENSE_LAYER, "none")
    scattered = [op for op in backward.ops if isinstance(op, Collective) and "grad" in op.name]
    blocking = [op for op in scattered if op.kind == "reduce_scatter"]
    assert [op.overlaps for op in blocking] == [0, 0]
    assert moved(backward, "gather_grad_sum") == []
    whole = packed.tokens * LLAMA.hidden_size * packed.element_bytes
    assert moved(backward, "gather_grad_order") == [2 * whole] * 2
    summed = [op.m for op in backward.ops if isinstance(op, Gemm) and "qkv" in op.name]
    assert min(summed[:3]) == packed.tokens


def test_what_autograd_keeps_gathered_is_not_gathered_again() -> None:
    fused = Shard.of(make_job(LLAMA, tp=4, sp=True))
    plain = replace(fused, keeps_gathered=True)
    whole = fused.tokens * LLAMA.hidden_size * fused.element_bytes
    ours, theirs = (layer_blocks(shard, DENSE_LAYER, "none")[1] for shard in (fused, plain))
    assert wire_bytes(ours, "tp") - wire_bytes(theirs, "tp") == 2 * whole


@pytest.mark.parametrize("model", [LLAMA, TINY])
def test_separate_projections_add_up_their_input_gradients(model: Model) -> None:
    shard = Shard.of(make_job(model))
    apart = replace(shard, separate_projections=True)
    whole = shard.tokens * model.hidden_size * shard.element_bytes
    forward, backward = layer_blocks(apart, DENSE_LAYER, "none")
    widths = [op.n for op in forward.ops if isinstance(op, Gemm)]
    q, kv = (heads * model.qk_head_dim for heads in (shard.heads, shard.kv_heads))
    assert widths[:3] == [q, kv, kv]
    assert flops(forward) == flops(layer_blocks(shard, DENSE_LAYER, "none")[0])
    # Query, key and value: three read, one written; gate and up: two and one.
    expected = [3 * whole, 4 * whole] if model.gated_mlp else [4 * whole]
    assert moved(backward, "_grad_sum") == expected


def test_every_other_of_separate_products_runs_again() -> None:
    apart = Shard.of(make_job(LLAMA, training={"separate_projections": True}))
    packed = replace(apart, separate_projections=False)
    ours, theirs = (
        layer_blocks(shard, DENSE_LAYER, "selective", "operations")[1] for shard in (apart, packed)
    )
    again = [op.name for op in ours.ops if isinstance(op, Gemm) and op.name.endswith("_fwd")]
    assert again == ["qkv_1_fwd", "attention_output_fwd", "fc1_1_fwd"]
    assert flops(ours) == flops(theirs)


def test_asynchronous_tensor_parallelism_multiplies_rank_by_rank() -> None:
    recipe = {"tp": 4, "sp": True, "tp_comm_overlap": True}
    whole = Shard.of(make_job(LLAMA, training={"fusion": "compiled"}, **recipe))
    cut = replace(whole, batch_first=True)
    for one, other in zip(
        layer_blocks(whole, DENSE_LAYER, "none"),
        layer_blocks(cut, DENSE_LAYER, "none"),
        strict=True,
    ):
        assert flops(one) == flops(other)
        for name, pieces in (("qkv_fwd", 4), ("fc2_dgrad", 4), ("fc1_wgrad", 1)):
            sizes = [
                [op.m for op in b.ops if getattr(op, "name", "") == name] for b in (one, other)
            ]
            assert sizes[1] == [m // pieces for m in sizes[0] for _ in range(pieces)]


@pytest.mark.parametrize(("cp", "paired"), [(2, False), (4, True)])
def test_a_ring_sends_over_communicators_of_two_but_batches_between_two(
    cp: int, paired: bool
) -> None:
    blocks = layer_blocks(Shard.of(make_job(LLAMA, cp=cp)), DENSE_LAYER, "none")
    sends = [op for block in blocks for op in block.ops if isinstance(op, SendRecv)]
    # Keys forth; keys, both and gradients back.
    assert len(sends) == 2 * cp - 1
    assert {op.paired for op in sends} == {paired}
