"""Blocks are read back as they were written, and nothing else is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.simulators.jobs import MOE, TINY, make_job
from trainscout.simulators.predictor.question.layers import DENSE_LAYER, EXPERT_LAYER
from trainscout.simulators.predictor.workload.ir import Block, Convolution
from trainscout.simulators.predictor.workload.model.ends import head_blocks
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.residual_stream.embedding import embedding_blocks
from trainscout.simulators.predictor.workload.shard import Shard
from trainscout.simulators.virtual_cluster.traced.cache import (
    decode_block,
    encode_block,
)
from trainscout.simulators.virtual_cluster.traces.codec import MalformedError

SHARD = Shard.of(make_job(TINY, tp=2, sp=True, cp=2))
BLOCKS = [
    *layer_blocks(SHARD, DENSE_LAYER, "none"),
    *layer_blocks(Shard.of(make_job(MOE, ep=4)), EXPERT_LAYER, "full"),
    *embedding_blocks(SHARD),
    *head_blocks(SHARD),
    Block("image", (Convolution("conv", 8, 3, 64, (224, 224), (7, 7), "bf16"),)),
]


def through_text(block: Block) -> Any:
    return json.loads(json.dumps(encode_block(block)))


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: str(block.name))
def test_what_is_written_is_read_back(block: Block) -> None:
    again = decode_block(through_text(block))
    assert again == block
    assert again.digest == block.digest


def _without(key: str) -> Any:
    given = through_text(BLOCKS[0])
    del given[key]
    return given


def _with_op(op: Any) -> Any:
    return {**through_text(BLOCKS[0]), "ops": [op]}


@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        _without("ops"),
        {**through_text(BLOCKS[0]), "more": 1},
        {**through_text(BLOCKS[0]), "peak_bytes": -1},
        {**through_text(BLOCKS[0]), "forward_ops": True},
        _with_op([]),
        _with_op(["block", "name"]),
        _with_op(["alloc", "tag"]),
        _with_op(["alloc", "tag", "8"]),
        _with_op(["alloc", "tag", True]),
        _with_op(["alloc", 3, 8]),
        _with_op({"alloc": 1}),
    ],
)
def test_anything_else_is_refused(given: Any) -> None:
    with pytest.raises(MalformedError):
        decode_block(given)
