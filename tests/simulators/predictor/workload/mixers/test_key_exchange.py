"""Context parallelism as Transformer Engine runs it."""

from __future__ import annotations

import pytest

from tests.simulators.jobs import GPT175B, LLAMA, make_job
from trainscout.simulators.predictor.question.layers import DENSE_LAYER, AttentionMixer
from trainscout.simulators.predictor.workload.ir import Attention, Op, SendRecv, Streaming
from trainscout.simulators.predictor.workload.mixers.attention import core
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.shard import Shard


def passes(cp_comm_type: str, cp: int, *, causal: bool = True) -> tuple[tuple[Op, ...], ...]:
    shard = Shard.of(make_job(LLAMA, cp=cp, cp_comm_type=cp_comm_type))
    part = core(shard, AttentionMixer(causal=causal))
    return part.forward, part.backward


# As Megatron-Core 0.16 and Transformer Engine 2.9 were traced: rank 0 launches 9 and 17 around a
# ring (its last keys and values come in halves, two more than other ranks'), and 4 and 12 where it
# gathers, besides a division of two numbers.
@pytest.mark.parametrize(("cp_comm_type", "launched"), [("p2p", [9, 15]), ("all_gather", [4, 12])])
def test_kernels_beside_attention_are_those_of_transformer_engine(
    cp_comm_type: str, launched: list[int]
) -> None:
    kernels = [
        sum(op.launches for op in ops if isinstance(op, Streaming))
        for ops in passes(cp_comm_type, 4)
    ]
    assert kernels == launched


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("cp", [2, 4, 8])
def test_gathering_attends_to_as_much_as_the_ring_and_carries_as_much(
    cp: int, causal: bool
) -> None:
    ring, gathered = (passes(how, cp, causal=causal) for how in ("p2p", "all_gather"))
    for one, other in zip(ring, gathered, strict=True):
        pairs = [
            sum(
                op.seq_q * op.seq_k / (2 if op.causal else 1)
                for op in ops
                if isinstance(op, Attention)
            )
            for ops in (one, other)
        ]
        assert pairs[0] == pairs[1]
        assert sum(isinstance(op, Attention) for op in other) == 2
        sent = sum(op.bytes for op in one if isinstance(op, SendRecv))
        # A gather's bytes are those of all ranks, of which one's own need not travel.
        whole = sum(op.bytes for op in other if getattr(op, "communicator", "") == "cp")
        assert sent == whole * (cp - 1) // cp


# MB that the traced layer holds at most beyond what was live before it, of rank 0.
@pytest.mark.parametrize(("cp_comm_type", "traced_mb"), [("p2p", 93), ("all_gather", 101)])
def test_what_travels_is_held_as_traced(cp_comm_type: str, traced_mb: int) -> None:
    job = make_job(GPT175B, tp=2, sp=True, cp=8, nodes=8, cp_comm_type=cp_comm_type)
    forward, _ = layer_blocks(Shard.of(job), DENSE_LAYER, "none")
    assert forward.peak_bytes == pytest.approx(traced_mb * 1e6, rel=0.05)
