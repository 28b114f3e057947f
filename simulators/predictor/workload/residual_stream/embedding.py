"""Words looked up in the embedding, and what is added to them."""

from __future__ import annotations

import functools

from trainscout.simulators.predictor.workload.ir import Alloc, Block, Collective, Op, Streaming
from trainscout.simulators.predictor.workload.linear_layers.linear import accumulation
from trainscout.simulators.predictor.workload.part import Part, compose
from trainscout.simulators.predictor.workload.shard import Shard


@functools.lru_cache(maxsize=1024)
def embedding_blocks(shard: Shard) -> tuple[Block, Block]:
    """Vocabulary-parallel embedding lookup, positions, dropout."""
    return compose("embedding", [embedding_part(shard)])


def embedding_part(shard: Shard) -> Part:
    model, size = shard.model, shard.stream_bytes
    full = shard.tokens * model.hidden_size
    forward: list[Op] = [Streaming("embedding_fwd", "embedding", 2 * full * size)]
    backward: list[Op] = []
    table = shard.embedding_rows * model.hidden_size
    shared = shard.shares_table and not shard.fused_wgrad
    if shard.trains:
        backward += table_gradient(shard, "embedding", full, table, shared=shared)
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
    # Where the head has the same table, autograd keeps its gradient until then, and makes a third.
    tables = table * (3 if shared else 1)
    return Part(
        tuple(forward),
        tuple(backward),
        tuple(saved),
        forward_peak_bytes=2 * full * size,
        backward_peak_bytes=(2 * full + tables) * size if shard.trains else 0,
    )


def table_gradient(
    shard: Shard, name: str, looked_up: int, table: int, *, shared: bool = False
) -> list[Op]:
    """The gradient of a lookup, a dense tensor of the table's size in every framework.

    It is filled with zeros and written (``embedding_dense_backward``), and added to that of other
    micro-batches or, where the head has the same table (``shared``), to the head's, which is added
    to those. Sizes in elements.
    """
    own = 4 if shard.autocast else shard.element_bytes
    moved = looked_up * shard.stream_bytes + 2 * table * own
    made = Streaming(f"{name}_bwd", "embedding_bwd", moved, launches=2)
    if shared:
        return [made, Streaming(f"{name}_accumulate", "elementwise", 3 * own * table)]
    return [made, *accumulation(shard, name, table)]
