"""What a layer with experts sends, sorts and multiplies, under every dispatcher."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.simulators.jobs import MOE, make_job
from tests.simulators.predictor.workload.blocks import flops, wire_bytes
from trainscout.simulators.predictor.question.layers import EXPERT_LAYER
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.workload.feed_forward.exchange import is_exchange
from trainscout.simulators.predictor.workload.feed_forward.moe import UNWEIGHED
from trainscout.simulators.predictor.workload.ir import (
    Alloc,
    Block,
    Collective,
    Free,
    GroupedGemm,
    HostSync,
    Op,
    Streaming,
)
from trainscout.simulators.predictor.workload.megatron import paired
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.shard import Shard


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


@pytest.mark.parametrize("by_recipe", [False, True])
def test_behind_deepep_no_expert_is_padded(by_recipe: bool) -> None:
    assert MOE.moe is not None
    cut = replace(MOE.moe, capacity_factor=4.0)
    knobs = {"moe_dispatcher": "deepep"} if by_recipe else {}
    moe = cut if by_recipe else replace(cut, dispatcher="deepep")
    jobs = [
        make_job(replace(MOE, moe=replace(moe, pad_to_capacity=padded)), ep=4, **knobs)
        for padded in (True, False)
    ]
    padded, unpadded = (layer_blocks(Shard.of(job), EXPERT_LAYER, "none") for job in jobs)
    assert padded == unpadded
    assert jobs[0].moe is not None
    assert not jobs[0].moe.padded
    alltoall = make_job(replace(MOE, moe=cut), ep=4)
    assert flops(layer_blocks(Shard.of(alltoall), EXPERT_LAYER, "none")[0]) > flops(padded[0])


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


@pytest.mark.parametrize(("pads", "ep", "load"), [(False, 1, 1), (False, 2, 1.6), (True, 1, 1.6)])
def test_one_gpu_has_no_busiest_but_where_experts_are_padded(
    pads: bool, ep: int, load: float
) -> None:
    def rows(imbalance: float) -> int:
        moe = replace(MOE.moe, load_imbalance=imbalance)
        job = make_job(replace(MOE, moe=moe), ep=ep, training={"pads_experts": pads})
        blocks = layer_blocks(Shard.of(job), EXPERT_LAYER, "none")
        return max(op.m_per_group for op in blocks[0].ops if isinstance(op, GroupedGemm))

    assert rows(1.6) == pytest.approx(load * rows(1.0), abs=1)


def test_a_loop_waits_and_launches_for_each_expert() -> None:
    """The products of all four at once, and in the forward pass a wait for the rows of each."""

    def products(block: Block) -> Counter[tuple[str, int]]:
        grouped = [op for op in block.ops if isinstance(op, GroupedGemm)]
        return Counter((op.name, op.m_per_group) for op in grouped for _ in range(op.groups))

    apart = Shard.of(make_job(MOE, ep=2))
    looped = replace(apart, loops_experts=True)
    for plain, loop, kernels, waits in zip(
        layer_blocks(apart, EXPERT_LAYER, "none"),
        layer_blocks(looped, EXPERT_LAYER, "none"),
        (13, 20),
        (4, 0),
        strict=True,
    ):
        turns = [op for op in loop.ops if isinstance(op, Streaming) and "loop" in op.name]
        assert [op.launches for op in turns] == [kernels] * 4
        assert loop.ops.count(HostSync("expert_rows")) == waits
        assert products(loop) == products(plain)


@pytest.mark.parametrize(("ep", "waits"), [(1, 0), (2, 1)])
@pytest.mark.parametrize("by_torch", [{"written_dispatch": "half"}, {"gathers_for_experts": True}])
def test_grouped_products_of_pytorch_take_counts_on_the_device(
    by_torch: dict[str, Any], ep: int, waits: int
) -> None:
    """Unless tokens are exchanged; Transformer Engine's take them as a list."""
    shard = Shard.of(make_job(MOE, ep=ep))
    for each, read in ((shard, 1), (replace(shard, **by_torch), waits)):
        forward = layer_blocks(each, EXPERT_LAYER, "none")[0]
        assert forward.ops.count(HostSync("expert_counts")) == read


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


@pytest.mark.parametrize(("dispatcher", "times"), [("deepep", 2), ("alltoall", 1)])
def test_deepep_sent_from_every_rank_what_all_of_them_gathered(
    dispatcher: str, times: int
) -> None:
    """TorchTitan's ``DeepEPMoE`` until May 2026, whose ``reorderer`` is None: both ranks of two
    send all tokens, and experts' rows are twice as many."""
    moe = replace(MOE.moe, dispatcher=dispatcher)
    job = make_job(replace(MOE, moe=moe), tp=2, sp=True, ep=2, etp=1)
    once = replace(Shard.of(job), gathers_for_experts=True)

    def found(shard: Shard) -> tuple[int, int]:
        ops = layer_blocks(shard, EXPERT_LAYER, "none")[0].ops
        (sent,) = (op.bytes for op in ops if isinstance(op, Collective) and op.name == "dispatch")
        return sent, max(op.m_per_group for op in ops if isinstance(op, GroupedGemm))

    again = found(replace(once, repeats_deepep=True))
    assert again == tuple(times * each for each in found(once))


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
        more = flops(multiplied) - flops(plain)
        assert more == pytest.approx(products * pair)
        assert not any(isinstance(op, Streaming) and "permute" in op.name for op in multiplied.ops)
    dropless = replace(masked, model=MOE)
    assert layer_blocks(dropless, EXPERT_LAYER, "none") == layer_blocks(
        replace(moved, model=MOE), EXPERT_LAYER, "none"
    )


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


def test_plain_activations_are_kept_before_they_are_weighed() -> None:
    def kept(model: Model, recompute: str = "none", modules: str = "") -> list[int]:
        forward, _ = layer_blocks(Shard.of(make_job(model)), EXPERT_LAYER, recompute, modules)
        names = ("expert_activation", UNWEIGHED)
        return [op.bytes for op in forward.ops if isinstance(op, Alloc) and op.tag in names]

    plain = replace(MOE, gated_mlp=False)
    (one,) = kept(MOE)
    assert kept(plain) == [one, one]
    # The squared ReLU of hybrids and the weights are one kernel; both run again with moe_act.
    hybrid = replace(plain, layers=f"{plain.num_layers}*none/moe")
    assert kept(hybrid) == [one]
    assert kept(plain, "selective", "moe_act") == []
