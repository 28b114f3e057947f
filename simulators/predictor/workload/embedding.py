"""Words looked up in the embedding, and what is added to them."""

from __future__ import annotations

import functools

from .ir import Alloc, Block, Collective, Op, Streaming
from .part import Part, compose
from .shard import Shard


@functools.lru_cache(maxsize=1024)
def embedding_blocks(shard: Shard) -> tuple[Block, Block]:
    """Vocabulary-parallel embedding lookup, positions, dropout."""
    return compose("embedding", [embedding_part(shard)])


def embedding_part(shard: Shard) -> Part:
    model, size = shard.model, shard.stream_bytes
    full = shard.tokens * model.hidden_size
    forward: list[Op] = [Streaming("embedding_fwd", "embedding", 2 * full * size)]
    backward: list[Op] = []
    if shard.trains:
        backward.append(Streaming("embedding_bwd", "embedding_bwd", full * (size + 8)))
    if shard.tp > 1 and not shard.whole_embedding:
        # Learned positions are added to whole sequences, which are cut afterwards (Megatron-LM).
        scattered = shard.sp and model.position != "learned"
        kind = "reduce_scatter" if scattered else "all_reduce"
        forward.append(Collective("embedding_reduce", kind, full * size, "tp", shard.dtype))
    if shard.sp and shard.tp > 1 and shard.trains:
        backward.insert(
            0, Collective("embedding_gather", "all_gather", full * size, "tp", shard.dtype)
        )
    local = shard.local_tokens * model.hidden_size
    saved: list[Alloc] = []
    if model.position == "learned":
        forward.append(Streaming("position_add", "elementwise", 3 * full * size))
        if shard.trains:
            backward.append(Streaming("position_grad", "embedding_bwd", full * (size + 8)))
    if model.dropout:
        forward.append(Streaming("embedding_dropout", "dropout", local * (2 * size + 1)))
        backward.insert(0, Streaming("embedding_dropout_bwd", "dropout", local * (2 * size + 1)))
        saved.append(Alloc("embedding_mask", local))
    # A lookup's gradient is a dense tensor of the table's size, in every framework. Where the head
    # has the same table, autograd keeps its gradient until then and makes their sum, a third one.
    shared = shard.shares_table and not shard.fused_wgrad
    tables = shard.embedding_rows * model.hidden_size * (3 if shared else 1)
    return Part(
        tuple(forward),
        tuple(backward),
        tuple(saved),
        forward_peak_bytes=2 * full * size,
        backward_peak_bytes=(2 * full + tables) * size if shard.trains else 0,
    )
