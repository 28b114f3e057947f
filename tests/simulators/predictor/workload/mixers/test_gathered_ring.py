"""Attention over sequence shards whose keys and values are gathered at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulators.jobs import LLAMA, make_job
from trainscout.simulators.predictor.question.layers import WHOLE
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.mixers.attention import attention_parts
from trainscout.simulators.predictor.workload.shard import Shard


def core(shard: Shard) -> tuple[tuple[ir.Op, ...], tuple[ir.Op, ...]]:
    (part,) = (part for part in attention_parts(shard, WHOLE) if part.module == "core_attn")
    return part.forward, part.backward


def shards(cp: int) -> tuple[Shard, Shard]:
    ring = Shard.of(make_job(LLAMA, cp=cp))
    return ring, replace(ring, gathers_ring=True)


@pytest.mark.parametrize("cp", [2, 4])
def test_the_same_attention_with_one_gather(cp: int) -> None:
    ring, gathered = shards(cp)
    # Transformer Engine's backward pass takes the pieces in reverse.
    for turn, one, other in zip((1, -1), core(ring), core(gathered), strict=True):
        pieces = [[op for op in ops if isinstance(op, ir.Attention)] for ops in (one, other)]
        assert pieces[0][::turn] == pieces[1]
        (gather,) = (op for op in other if isinstance(op, ir.Collective))
        assert (gather.kind, gather.communicator, gather.overlaps) == ("all_gather", "cp", 1)
        keys = 2 * ring.kv_heads * LLAMA.qk_head_dim * ring.tokens * ring.element_bytes
        assert gather.bytes == cp * keys


def test_gradients_travel_in_fp32_and_the_last_is_waited_for() -> None:
    _, gathered = shards(4)
    forward, backward = core(gathered)
    assert not any(isinstance(op, ir.SendRecv) for op in forward)
    sent = [op for op in backward if isinstance(op, ir.SendRecv)]
    keys = 2 * gathered.kv_heads * LLAMA.qk_head_dim * gathered.tokens
    assert [op.bytes for op in sent] == [4 * keys] * 4
    assert [op.overlaps for op in sent] == [1, 1, 1, 0]


def test_merges_read_and_write_fp32_outputs() -> None:
    _, gathered = shards(2)
    forward, _ = core(gathered)
    (merge,) = (op for op in forward if isinstance(op, ir.Streaming) and op.name == "merge")
    queries = gathered.heads * LLAMA.qk_head_dim * gathered.tokens
    # Cast, difference, weighted difference, sum; half of that, and the join of both halves.
    whole = (2 + 4) + 3 * 4 + 2 * 4 + 3 * 4
    assert merge.bytes == queries * (whole + (whole // 2 + 2 * 4)) // 2


def test_with_more_ranks_only_gathered_keys_are_more() -> None:
    peaks = []
    for cp in (2, 4):
        # Each rank keeps the same share of a sequence that grows with them.
        gathered = replace(shards(cp)[1], sequence=512)
        (part,) = (each for each in attention_parts(gathered, WHOLE) if each.module == "core_attn")
        peaks.append((part.forward_peak_bytes, part.backward_peak_bytes))
    keys = 2 * gathered.kv_heads * LLAMA.qk_head_dim * gathered.tokens * gathered.element_bytes
    assert [more - fewer for fewer, more in zip(*peaks, strict=True)] == [2 * keys] * 2


def test_one_rank_gathers_nothing() -> None:
    ring, gathered = shards(1)
    assert core(ring) == core(gathered)


def test_compiled_blocks_wait_for_every_exchange() -> None:
    _, gathered = shards(4)
    exchanges = [
        op.overlaps
        for ops in core(replace(gathered, fusion="compiled"))
        for op in ops
        if isinstance(op, ir.Collective | ir.SendRecv)
    ]
    assert exchanges == [0] * (2 + 4)
