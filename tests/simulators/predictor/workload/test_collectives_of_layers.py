"""Bytes that a layer's collectives carry, under every way to shard it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from tests.simulators.jobs import LLAMA, MLA_MOE, MODELS, MOE, TINY, make_job
from trainscout.simulators.predictor.question.layers import DENSE_LAYER, EXPERT_LAYER
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.workload.ir import (
    Alloc,
    Attention,
    Block,
    Collective,
    Free,
    Gemm,
    GroupedGemm,
    HostSync,
    Op,
    SendRecv,
    Streaming,
)
from trainscout.simulators.predictor.workload.layer import layer_blocks
from trainscout.simulators.predictor.workload.megatron import paired
from trainscout.simulators.predictor.workload.moe import is_exchange
from trainscout.simulators.predictor.workload.shard import Shard

# Bytes one rank sends over its links, in units of the collective's size times (t - 1)/t.
STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


def wire_bytes(block: Block, communicator: str, *, exposed: bool = False) -> int:
    return sum(
        STEPS[op.kind] * op.bytes
        for op in block.ops
        if isinstance(op, Collective) and op.communicator == communicator
        if not (exposed and op.overlaps)
    )


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
    (whole,) = (op for op in forward.ops if isinstance(op, Attention))
    assert (whole.heads, whole.seq_q, whole.seq_k, whole.causal) == (2, 64, 64, True)
    # The ring's pieces do the same work on every head.
    pieces = [
        op for op in layer_blocks(ring, DENSE_LAYER, "none")[0].ops if isinstance(op, Attention)
    ]
    pairs = sum(op.heads * op.seq_q * op.seq_k / (2 if op.causal else 1) for op in pieces)
    assert pairs == whole.heads * 64 * 64 / 2


def test_deepep_sends_a_token_once_to_each_gpu_or_node() -> None:
    assert MOE.moe is not None
    model = replace(MOE, moe=replace(MOE.moe, dispatcher="deepep"))
    token = 256 * 2
    # Two experts over eight GPUs: both on one in an eighth of the cases.
    inside, _ = layer_blocks(Shard.of(make_job(model, ep=8)), EXPERT_LAYER, "none")
    assert wire_bytes(inside, "ep") == 2 * 64 * token * (2 - 1 / 8)
    # Four nodes of two GPUs: only copies to different nodes count.
    across = make_job(model, nodes=4, gpus_per_node=2, ep=8)
    forward, backward = layer_blocks(Shard.of(across), EXPERT_LAYER, "none")
    assert wire_bytes(forward, "ep") == wire_bytes(backward, "ep") == 2 * 64 * token * (2 - 1 / 4)


@pytest.mark.parametrize(
    ("experts", "top_k", "ep"),
    [(8, 2, 8), (8, 2, 4), (8, 2, 2), (24, 8, 2), (24, 8, 4), (8, 7, 2)],
)
def test_experts_handed_out_in_turn_lie_on_few_gpus(experts: int, top_k: int, ep: int) -> None:
    moe = replace(MOE.moe, num_experts=experts, top_k=top_k, experts_in_turn=True)
    model = replace(MOE, moe=replace(moe, dispatcher="deepep"))
    tokens = [range(first, first + top_k) for first in range(0, experts * top_k, top_k)]
    gpus = [len({place % experts // (experts // ep) for place in token}) for token in tokens]
    forward, _ = layer_blocks(Shard.of(make_job(model, ep=ep)), EXPERT_LAYER, "none")
    sent = 2 * 64 * 256 * 2 * sum(gpus) / len(gpus)
    assert wire_bytes(forward, "ep") == pytest.approx(sent, abs=4)


@pytest.mark.parametrize("dispatcher", ["alltoall", "deepep"])
def test_the_busiest_gpu_receives_more(dispatcher: str) -> None:
    assert MOE.moe is not None

    def layer(imbalance: float, capacity: float | None) -> tuple[Block, Block]:
        moe = replace(
            MOE.moe,  # type: ignore[type-var]
            dispatcher=dispatcher,
            load_imbalance=imbalance,
            capacity_factor=capacity,
        )
        return layer_blocks(Shard.of(make_job(replace(MOE, moe=moe), ep=4)), EXPERT_LAYER, "none")

    for even, uneven in zip(layer(1, None), layer(1.5, None), strict=True):
        for one, other in zip(even.ops, uneven.ops, strict=True):
            if isinstance(one, GroupedGemm) and isinstance(other, GroupedGemm):
                assert other.m_per_group == 1.5 * one.m_per_group
            if isinstance(one, Collective) and isinstance(other, Collective) and is_exchange(one):
                assert other.bytes == 1.5 * one.bytes
    assert layer(1.5, None)[0].saved_bytes > layer(1, None)[0].saved_bytes
    # Experts that are padded or cut to a capacity all receive the same.
    assert layer(1.5, 1.0) == layer(1, 1.0)


def test_hot_experts_load_the_ranks_they_are_on() -> None:
    """One of eight experts gets half of all routings: the fewer experts a rank has, the worse."""
    assert MOE.moe is not None

    def widest(hot: bool, ep: int) -> int:
        moe = replace(MOE.moe, top_k=1)  # type: ignore[type-var]
        if hot:
            moe = replace(moe, hot_ratio=1 / 8, hot_weight=0.5)
        job = make_job(replace(MOE, moe=moe, sequence_length=8192), ep=ep)
        forward, _ = layer_blocks(Shard.of(job), EXPERT_LAYER, "none")
        return max(op.m_per_group for op in forward.ops if isinstance(op, GroupedGemm))

    for ep, expected in ((1, 1.0), (4, 4 * (1 / 2 + 1 / 14)), (8, 4.0)):
        # 8192 tokens a rank: counts are within a few percent of their expectation.
        assert widest(True, ep) / widest(False, ep) == pytest.approx(expected, rel=0.05)


def unpaired(op: Op) -> Op:
    return replace(op, overlaps=0) if isinstance(op, Collective) else op


@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "deepep"])
def test_exchanges_beside_another_micro_batch(dispatcher: str, recompute: str) -> None:
    assert MOE.moe is not None
    model = replace(MOE, moe=replace(MOE.moe, dispatcher=dispatcher))
    shard = Shard.of(make_job(model, ep=4, tp=2, sp=True))
    alone = layer_blocks(shard, EXPERT_LAYER, recompute)
    for one, other in zip(alone, paired(*alone), strict=True):
        # Only the order and what runs beside changes.
        assert Counter(map(unpaired, one.ops)) == Counter(map(unpaired, other.ops))
        assert (one.peak_bytes, one.saved_bytes) == (other.peak_bytes, other.saved_bytes)
        device = [op for op in other.ops if not isinstance(op, Alloc | Free | HostSync)]
        exchanges = [
            (index, op)
            for index, op in enumerate(device)
            if isinstance(op, Collective) and is_exchange(op)
        ]
        # One runs beside everything up to the other, that one beside the rest.
        (first, one_exchange), (second, other_exchange) = exchanges
        assert (first, first + one_exchange.overlaps + 1) == (0, second)
        assert second + other_exchange.overlaps + 1 == len(device)


def test_all_gather_dispatcher_gathers_all_tokens_once() -> None:
    assert MOE.moe is not None
    model = replace(MOE, moe=replace(MOE.moe, dispatcher="allgather"))
    forward, backward = layer_blocks(Shard.of(make_job(model, ep=8)), EXPERT_LAYER, "none")
    everything = 8 * 64 * 256 * 2
    counts = 8 * 8 * 8
    assert wire_bytes(forward, "etp_ep") - counts == wire_bytes(backward, "etp_ep")
    assert wire_bytes(backward, "etp_ep") == 2 * everything


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


def flops(block: Block) -> int:
    return sum(2 * op.m * op.n * op.k for op in block.ops if isinstance(op, Gemm))


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


def test_experts_over_their_capacity_drop_and_others_are_not_padded() -> None:
    """Of 100 tokens, one choice each, a capacity of 25 keeps 25, 20, 10 and 10; padded, all have
    25; four ranks with an expert each get four ranks' tokens."""
    assert MOE.moe is not None
    counted = replace(MOE.moe, num_experts=4, top_k=1, measured=(60, 20, 10, 10))

    def rows(**changes: object) -> tuple[int, int]:
        model = replace(MOE, moe=replace(counted, **changes), sequence_length=1000)  # type: ignore[arg-type]
        shard = Shard.of(make_job(model, ep=4))
        forward, _ = layer_blocks(shard, EXPERT_LAYER, "none")
        sent = next(op for op in forward.ops if isinstance(op, Streaming) and op.name == "permute")
        width = shard.model.hidden_size * shard.element_bytes * 2
        received = max(op.m_per_group for op in forward.ops if isinstance(op, GroupedGemm))
        return sent.bytes // width, received

    def close(sent: int, received: int) -> object:
        return pytest.approx((sent, received), rel=0.02)

    # Routers draw: counts are within a percent or two.
    assert rows() == close(1000, 2400)
    assert rows(capacity_factor=1.0) == (1000, 1000)
    assert rows(capacity_factor=1.0, pad_to_capacity=False) == close(650, 1000)
    # 50, 20, 10, 10 of 100.
    assert rows(capacity_factor=2.0, pad_to_capacity=False) == close(900, 2000)
    assert rows(capacity_factor=4.0, pad_to_capacity=False) == close(1000, 2400)
    # Who says no popularity says no drops: all have an even share.
    even = {"measured": (), "pad_to_capacity": False}
    assert rows(**even, capacity_factor=1.5) == (1000, 1000)
    assert rows(**even, capacity_factor=0.5) == (500, 500)
    assert rows(**even, capacity_factor=1.5, load_imbalance=2.0) == (1000, 1500)


@pytest.mark.parametrize(("cp", "paired"), [(2, False), (4, True)])
def test_a_ring_sends_over_communicators_of_two_but_batches_between_two(
    cp: int, paired: bool
) -> None:
    blocks = layer_blocks(Shard.of(make_job(LLAMA, cp=cp)), DENSE_LAYER, "none")
    sends = [op for block in blocks for op in block.ops if isinstance(op, SendRecv)]
    assert len(sends) == 2 * (cp - 1)
    assert {op.paired for op in sends} == {paired}


def test_a_loop_over_experts_launches_for_each() -> None:
    apart = Shard.of(make_job(MOE, ep=2))
    looped = replace(apart, loops_experts=True)
    for plain, loop, kernels in zip(
        layer_blocks(apart, EXPERT_LAYER, "none"),
        layer_blocks(looped, EXPERT_LAYER, "none"),
        (13, 20),
        strict=True,
    ):
        (more,) = (op for op in loop.ops if isinstance(op, Streaming) and "loop" in op.name)
        assert more.launches == kernels * 4
        assert len(loop.ops) == len(plain.ops) + 1


@pytest.mark.parametrize(
    ("written", "dispatcher", "moved", "kept"),
    [
        ("half", "alltoall", (6, 20 + 2 * 12), 2),
        # The outer product takes as long as 280 bytes for each element of a token.
        ("fp32", "alltoall", (16, 28 + 2 * 12 + 280 // MOE.moe.top_k), 4),
        ("fp32", "deepep", (6 + 32, 20 + 32), 2),
        ("atomic", "alltoall", (8, 8 + 32), 2),
    ],
)
def test_written_dispatch_weighs_every_copy(
    written: str, dispatcher: str, moved: tuple[int, int], kept: int
) -> None:
    """Bytes an element of a token copy, sums by index and by atomics as so many more: in fp32
    unless DeepEP exchanges them."""
    moe = replace(MOE.moe, dispatcher=dispatcher, shared_ffn_hidden_size=0)
    eager = Shard.of(make_job(replace(MOE, moe=moe), ep=2))
    shard = replace(eager, written_dispatch=written, fusion="eager", recompute_stops_early=True)
    copies = shard.local_tokens * MOE.moe.top_k * MOE.hidden_size
    forward, backward = layer_blocks(shard, EXPERT_LAYER, "none")
    names = ("weigh_copies", "weigh_copies_bwd")
    for block, name, size in zip((forward, backward), names, moved, strict=True):
        (weighed,) = (op for op in block.ops if isinstance(op, Streaming) and op.name == name)
        assert weighed.bytes == size * copies
    assert Alloc("expert_output", kept * copies) in forward.ops
    # The weights' gradients read what experts made, which a recomputed layer makes again.
    for each, again in ((shard, 2), (replace(shard, written_dispatch=""), 1)):
        rerun = layer_blocks(each, EXPERT_LAYER, "full")[1]
        exchanges = [op for op in rerun.ops if isinstance(op, Collective) and is_exchange(op)]
        assert len(exchanges) == 2 + again


def test_ranks_that_gather_tokens_for_experts_send_them_all() -> None:
    """TorchTitan's layers (``PrepareModuleInputOutput``): every rank of four routes all tokens and
    exchanges them; experts' ranks have nothing to gather, and as many rows."""
    apart = Shard.of(make_job(MOE, tp=4, sp=True, ep=2, etp=4))
    whole = replace(apart, gathers_for_experts=True)

    def found(shard: Shard) -> tuple[list[tuple[str, int]], list[Op], list[Op]]:
        forward = layer_blocks(shard, EXPERT_LAYER, "none")[0].ops
        exchanges = [op for op in forward if isinstance(op, Collective)]
        sizes = [(op.name, op.bytes) for op in exchanges if "_weights" not in op.name]
        permuted = [op for op in forward if isinstance(op, Streaming) and op.name == "permute"]
        return sizes, permuted, [op for op in forward if isinstance(op, GroupedGemm)]

    (before, permuted, products), (after, more, same) = found(apart), found(whole)
    assert same == products
    assert more[0].bytes == 4 * permuted[0].bytes
    tokens = whole.tokens * MOE.hidden_size * 2
    assert {("experts_in", tokens), ("experts_out", tokens)} <= set(after)
    assert dict(after)["dispatch"] == 4 * dict(before)["dispatch"]
    assert "dispatch_gather" in dict(before)
    assert "dispatch_gather" not in dict(after)


@pytest.mark.parametrize(("masks", "groups"), [("sequence", 4), ("micro_batch", 1)])
def test_masks_multiply_tokens_by_places_twice_forward_and_thrice_backward(
    masks: str, groups: int
) -> None:
    """GShard (Lepikhin et al. 2020), algorithm 2: E C places for S tokens of width M."""
    moe = replace(MOE.moe, load_imbalance=1.0, capacity_factor=1.25)
    moved = Shard.of(make_job(replace(MOE, moe=moe), ep=2, micro_batch=4))
    masked = replace(moved, masked_dispatch=masks)
    pair = 2 * moved.tokens * (1.25 * moe.top_k * moved.tokens / groups) * MOE.hidden_size
    for plain, multiplied, products in zip(
        layer_blocks(moved, EXPERT_LAYER, "none"),
        layer_blocks(masked, EXPERT_LAYER, "none"),
        (2, 3),
        strict=True,
    ):
        more = _flops(multiplied.ops) - _flops(plain.ops)
        assert more == pytest.approx(products * pair)
        assert not any(isinstance(op, Streaming) and "permute" in op.name for op in multiplied.ops)
    dropless = replace(masked, model=MOE)
    assert layer_blocks(dropless, EXPERT_LAYER, "none") == layer_blocks(
        replace(moved, model=MOE), EXPERT_LAYER, "none"
    )


def _flops(ops: Sequence[Op]) -> int:
    return sum(2 * op.m * op.n * op.k * op.batch for op in ops if isinstance(op, Gemm))


@pytest.mark.parametrize(
    ("recipe", "gathered"),
    [({"ep": 4}, 1), ({"tp": 2, "sp": True, "ep": 2}, 2), ({"tp": 2, "sp": True}, 2)],
)
def test_what_a_rank_gathers_it_sorts_by_expert_both_ways(
    recipe: dict[str, object], gathered: int
) -> None:
    """Megatron-Core's all-to-all dispatcher sorts behind the gather, and before the scatter."""
    shard = Shard.of(make_job(replace(MOE, moe=replace(MOE.moe, load_imbalance=1.0)), **recipe))
    forward, backward = layer_blocks(shard, EXPERT_LAYER, "none")
    rows = shard.local_tokens * MOE.moe.top_k * gathered
    for block in (forward, backward):
        sorts = [op for op in block.ops if isinstance(op, Streaming) and "sort" in op.name]
        assert [op.bytes for op in sorts] == [2 * rows * MOE.hidden_size * 2] * 2
        names = [getattr(op, "name", "") for op in block.ops]
        if gathered > 1:
            at = [names.index(op.name) for op in sorts]
            gather, scatter = (
                next(n for n, name in enumerate(names) if name.startswith(start))
                for start in ("dispatch_gather", "combine_reduce")
            )
            assert gather < at[0] < at[1] < scatter


def test_an_expert_a_rank_has_nothing_to_sort() -> None:
    forward, _ = layer_blocks(Shard.of(make_job(MOE, ep=8)), EXPERT_LAYER, "none")
    assert not [op for op in forward.ops if isinstance(op, Streaming) and "sort" in op.name]
