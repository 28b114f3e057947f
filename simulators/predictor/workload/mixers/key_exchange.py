"""Context parallelism of Transformer Engine: keys and values around a ring, or gathered at once.

Kernels and messages are those of ``dot_product_attention/context_parallel.py`` of release 2.9 (the
classes ``AttnFuncWithCPAndKVP2P`` and ``AttnFuncWithCPAndKVAllGather``), as ``simulator=traced``
records them. ``qkv`` and ``output`` are bytes of this rank's queries, keys, values and output.
"""

from __future__ import annotations

from collections.abc import Callable

from trainscout.simulators.predictor.workload.ir import (
    Attention,
    Collective,
    Op,
    SendRecv,
    Streaming,
)
from trainscout.simulators.predictor.workload.shard import Shard


def around_ring(
    shard: Shard, qkv: tuple[int, int, int], output: int, attend: Callable[[int, str], Attention]
) -> tuple[list[Op], list[Op]]:
    """Every rank's keys and values visit every other; ``attend``: the piece of a step and pass.

    With the causal triangle balanced over ranks: one causal piece on the local keys, then cp - 1
    half-filled pieces while the next keys travel (half of the queries or of the keys: bytes are
    means). Without, all are full. The backward pass takes them in reverse, then sends gradients.

    Transformer Engine batches the two directions for two ranks alone (NVTE_BATCH_MHA_P2P_COMM);
    for a send by itself PyTorch's NCCL back end keeps a communicator of the two ranks it joins.
    """
    keys, ranks, last = qkv[1] + qkv[2], shard.cp, shard.cp - 1
    pairs, stats, causal = ranks > 2, 4 * shard.tokens * shard.heads, attend(0, "fwd").causal
    others = last * (3 if causal else 4) / 4
    merged = 2 + 3 * others  # The first is copied, others are added to what is there.
    forward: list[Op] = [Streaming("kv_join", "memcpy", 2 * keys)]
    backward: list[Op] = [Streaming("kv_copy", "memcpy", 2 * keys + causal * stats, 1 + causal)]
    for step in range(ranks):
        if step < last:
            forward.append(SendRecv("kv_exchange", keys, "cp", 1, pairs))
        forward.append(attend(step, "fwd"))
        sent = keys if step in (0, last) else 2 * keys
        backward.append(SendRecv("kv_grad_exchange", sent, "cp", 1, pairs))
        backward.append(attend(last - step, "bwd"))
    read = int(merged * output + 2 * (1 + others) * stats)
    forward.append(Streaming("logsumexp_merge", "elementwise", int(merged * stats), ranks))
    forward.append(Streaming("output_merge", "elementwise", read, ranks))
    adds = 3 * ranks + causal  # Of a first piece with all queries half is copied, half added.
    backward.append(Streaming("qkv_grad_add", "elementwise", int(merged * sum(qkv)), adds))
    return forward, backward


def gathered_keys(
    shard: Shard, qkv: tuple[int, int, int], output: int, attend: Callable[[str], Attention]
) -> tuple[list[Op], list[Op]]:
    """Every rank gathers keys and values, orders them and attends with either half of its queries
    (``attend``, of the pass); nothing runs beside, and the backward pass gathers again."""
    keys, cp = qkv[1] + qkv[2], shard.cp
    order = Streaming("kv_order", "permute", 2 * cp * keys, launches=2)

    def each(kind: str) -> list[Op]:
        return [Collective(f"kv_{kind}", kind, cp * size, "cp", shard.dtype) for size in qkv[1:]]

    gather = [*each("all_gather"), order]
    # Gradients are added to zeros; the halves see 2 cp + 1 halves of a rank's keys.
    added = 2 * qkv[0] + 3 * (2 * cp + 1) * keys // 2
    zeros = Streaming("kv_grad_zero", "elementwise", cp * keys, launches=2)
    add = Streaming("qkv_grad_add", "elementwise", added, launches=6)
    join = Streaming("output_join", "memcpy", 2 * output, launches=2)
    ends = [add, order, *each("reduce_scatter")]
    return [*gather, *[attend("fwd")] * 2, join], [zeros, *gather, *[attend("bwd")] * 2, *ends]
