"""Collectives and kept bytes of the embedding and of the head."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulators.jobs import LLAMA, TINY, make_job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.tuning import Dpo
from trainscout.simulators.predictor.workload.ir import Block, Collective, Gemm, Streaming
from trainscout.simulators.predictor.workload.model.ends import head_blocks
from trainscout.simulators.predictor.workload.parameters import embedding_parameters
from trainscout.simulators.predictor.workload.residual_stream.embedding import embedding_blocks
from trainscout.simulators.predictor.workload.shard import Shard

# One micro-batch of hidden states: 64 tokens, 256 wide, bf16; and one fp32 value per token.
HIDDEN, PER_TOKEN = 64 * 256 * 2, 64 * 4


def collectives(block: Block) -> list[tuple[str, int]]:
    ops = [op for op in block.ops if isinstance(op, Collective)]
    assert all(op.communicator == "tp" for op in ops)
    return [(op.kind, op.bytes) for op in ops]


@pytest.mark.parametrize(
    ("model", "sp", "forward", "backward"),
    [
        (TINY, False, ["all_reduce"], []),
        (LLAMA, False, ["all_reduce"], []),
        # Megatron-LM sums whole sequences before it adds learned positions.
        (TINY, True, ["all_reduce"], ["all_gather"]),
        (LLAMA, True, ["reduce_scatter"], ["all_gather"]),
    ],
)
def test_embedding(model: Model, sp: bool, forward: list[str], backward: list[str]) -> None:
    blocks = embedding_blocks(Shard.of(make_job(model, tp=4, sp=sp)))
    assert collectives(blocks[0]) == [(kind, HIDDEN) for kind in forward]
    assert collectives(blocks[1]) == [(kind, HIDDEN) for kind in backward]


@pytest.mark.parametrize(("sp", "backward"), [(False, []), (True, [("all_gather", HIDDEN)])])
def test_a_whole_embedding_is_looked_up_without_its_peers(
    sp: bool, backward: list[tuple[str, int]]
) -> None:
    shard = Shard.of(make_job(LLAMA, tp=4, sp=sp, training={"whole_embedding": True}))
    blocks = embedding_blocks(shard)
    assert [collectives(block) for block in blocks] == [[], backward]
    assert embedding_parameters(shard).total == 1024 * 256


@pytest.mark.parametrize(("fused", "tables"), [(False, 2), (True, 0)])
def test_both_gradients_of_a_table_meet_in_a_third(fused: bool, tables: int) -> None:
    """A table of 524 MB whose gradient is there takes 1,573 MB more on a virtual GPU."""

    def peak(tied: bool) -> int:
        job = make_job(replace(TINY, tied_embeddings=tied), training={"fused_wgrad": fused})
        return embedding_blocks(Shard.of(job))[1].peak_bytes

    assert peak(True) - peak(False) == tables * TINY.padded_vocab_size(1) * 256 * 2


@pytest.mark.parametrize(
    ("tied", "training", "moved"),
    [
        (False, {}, {"bwd": 4, "accumulate": 2 + 2 * 4}),
        (True, {}, {"bwd": 4, "accumulate": 2 + 2 * 4}),
        # Autograd adds it to the head's, which is added to what is there.
        (True, {"fused_wgrad": False}, {"bwd": 4, "accumulate": 3 * 2}),
        # Autograd keeps the first micro-batch's as it comes.
        (False, {"fused_wgrad": False, "torch_wrappers": True}, {"bwd": 4}),
    ],
)
def test_a_lookup_has_a_dense_gradient(
    tied: bool, training: dict[str, bool], moved: dict[str, int]
) -> None:
    """The table's gradient is zeroed and written, and added to what is there."""
    job = make_job(replace(TINY, tied_embeddings=tied), training=training, zero_stage=3)
    shard = Shard.of(job)
    ops = [op for op in embedding_blocks(shard)[1].ops if isinstance(op, Streaming)]
    looked_up = shard.tokens * 256 * shard.stream_bytes
    table = TINY.padded_vocab_size(1) * 256
    found = {op.name.removeprefix("embedding_"): op.bytes for op in ops}
    assert found.pop("bwd") == looked_up + moved.pop("bwd") * table
    assert found.pop("accumulate", 0) == moved.get("accumulate", 0) * table


@pytest.mark.parametrize(
    ("sp", "forward", "backward"),
    [
        (False, [], ["all_reduce"]),
        (True, ["all_gather"], ["all_gather", "reduce_scatter"]),
    ],
)
def test_head_gathers_hidden_states_and_sums_the_loss(
    sp: bool, forward: list[str], backward: list[str]
) -> None:
    blocks = head_blocks(Shard.of(make_job(TINY, tp=4, sp=sp)))
    loss = [("all_reduce", PER_TOKEN)] * 3
    assert collectives(blocks[0]) == [(kind, HIDDEN) for kind in forward] + loss
    assert collectives(blocks[1]) == [(kind, HIDDEN) for kind in backward]


def test_ranks_that_gather_the_logits_take_the_loss_of_all() -> None:
    job = make_job(TINY, tp=4, sp=True, training={"gathers_logits": True})
    forward, backward = head_blocks(Shard.of(job))
    logits = 64 * TINY.padded_vocab_size(4)
    assert collectives(forward) == [("all_gather", HIDDEN), ("all_gather", 2 * logits)]
    assert forward.saved_bytes == 2 * HIDDEN // 4 + 4 * logits
    apart = head_blocks(Shard.of(make_job(TINY, tp=4, sp=True)))
    assert collectives(backward) == collectives(apart[1])
    alone = make_job(TINY, training={"gathers_logits": True})
    assert head_blocks(Shard.of(alone)) == head_blocks(Shard.of(make_job(TINY)))


def test_a_vocabulary_that_nobody_pads_is_shared_as_it_is() -> None:
    odd = replace(TINY, vocab_size=50257)

    def rows(tp: int, **software: object) -> tuple[int, int]:
        blocks = head_blocks(Shard.of(make_job(odd, tp=tp, training=software)))
        (product,) = (op for op in blocks[0].ops if isinstance(op, Gemm))
        return product.n, blocks[0].saved_bytes

    assert rows(1)[0] == 50264
    assert rows(1, pads_vocabulary=False)[0] == 50257
    assert rows(4, pads_vocabulary=False)[0] == 12565
    # TorchInductor pads what it multiplies.
    assert rows(1, pads_vocabulary=False, fusion="compiled")[0] == 50264
    assert rows(1)[1] - rows(1, pads_vocabulary=False)[1] == 64 * 7 * 4


@pytest.mark.parametrize("tp", [1, 4])
def test_head_keeps_norm_and_loss_probabilities(tp: int) -> None:
    forward, _ = head_blocks(Shard.of(make_job(TINY, tp=tp)))
    # Input and output of the final norm, and fp32 probabilities over this rank's vocabulary.
    assert forward.saved_bytes == 2 * HIDDEN + 64 * TINY.padded_vocab_size(tp) // tp * 4


def test_a_loss_in_pieces_never_holds_the_logits() -> None:
    def head(kind: str) -> tuple[Block, Block]:
        return head_blocks(Shard.of(make_job(TINY, training={"cross_entropy": kind})))

    pieces, whole = head("pieces"), head("in_place")
    rows = TINY.padded_vocab_size(1)
    # The projection's gradients are made in the forward pass: of its input, of its weight.
    assert pieces[0].saved_bytes == 2 * HIDDEN + HIDDEN + rows * 256 * 2
    assert whole[0].saved_bytes == 2 * HIDDEN + 64 * rows * 2
    products = ([op for op in block.ops if isinstance(op, Gemm)] for block in (*pieces, *whole))
    pieces_forward, pieces_backward, forward, backward = products
    assert (pieces_forward, pieces_backward) == (forward, backward)


def test_compiled_logits_that_are_handed_out_have_zeros_for_a_gradient() -> None:
    """As AOTAutograd's backward graph takes them, at PyTorch 2.13: logits, zeros, gradient."""

    def head(kind: str) -> tuple[Block, Block]:
        model = replace(TINY, vocab_size=64_000)
        return head_blocks(Shard.of(make_job(model, training={"cross_entropy": kind})))

    (forward, returned), (alike, compiled) = head("returned"), head("compiled")
    assert forward == alike
    logits = 64 * 64_000 * 2
    # Those that the forward pass kept are among neither.
    assert returned.peak_bytes == 2 * logits
    assert compiled.peak_bytes < 1.01 * logits


def test_logits_of_pairs_stay_in_16_bits_unless_autocast() -> None:
    def shard(micro_batch: int = 1, **training: object) -> Shard:
        eager = {"cross_entropy": "eager", **training}
        return Shard.of(make_job(TINY, micro_batch=micro_batch, training=eager))

    def peaks(of: Shard) -> list[int]:
        forward, backward = head_blocks(of)
        return [forward.peak_bytes, forward.saved_bytes + backward.peak_bytes]

    pairs, words = shard(dpo=Dpo()), shard(micro_batch=2)
    logits = pairs.tokens * TINY.padded_vocab_size(1)
    beside = [peaks(words)[way] - peaks(pairs)[way] for way in (0, 1)]
    # Of 10 bytes a logit forward 4 are left, of 12 backward 6: a loop like TRL's on virtual GPUs
    # allocates as much (14.25 - 6.91 - 0.25 GiB for 2.32 of logits, its reference included).
    assert beside == [6 * logits, 6 * logits]
    assert shard(dpo=Dpo(), autocast=True).loss == words.loss


def test_a_softmax_that_dtensors_split_moves_and_holds_more() -> None:
    """As ``loss_parallel`` does on two virtual GPUs: 16 bytes a logit at the most, 82 moved; the
    loss of a loop that holds 16-bit logits allocates 8 there."""

    def head(**facts: object) -> tuple[Block, Block]:
        training = {"cross_entropy": "eager", **facts}
        model = replace(TINY, vocab_size=64_000)
        return head_blocks(Shard.of(make_job(model, tp=2, training=training)))

    logits = 64 * 32_000
    forward, backward = head(cross_entropy="uncast")
    assert forward.saved_bytes + backward.peak_bytes == pytest.approx(8 * logits, rel=0.02)
    forward, backward = head()
    moved = [op for op in (*forward.ops, *backward.ops) if isinstance(op, Streaming)]
    assert sum(op.bytes for op in moved if op.name.startswith("loss_")) == 82 * logits
    held = forward.saved_bytes + backward.peak_bytes
    assert held == pytest.approx(16 * logits, rel=0.02)
    # Gathered logits are as many as on one rank, and their loss is that of one.
    whole, _ = head(gathers_logits=True)
    (loss,) = (op for op in whole.ops if isinstance(op, Streaming) and op.name == "loss_fwd")
    assert loss.bytes == 20 * 2 * logits
