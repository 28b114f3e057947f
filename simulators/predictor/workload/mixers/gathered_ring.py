"""Context parallelism as ``torch.distributed``'s ``context_parallel`` runs it by default.

The keys and values of all ranks are gathered at once, beside attention to the local ones; the
pieces are attended to one after another as around a ring. Partial outputs are merged, and
gradients of keys and values travel on and are added up, in fp32 tensors, each step a kernel
(``tensor/experimental/_attention.py`` of 2024-25: ``_SDPAMerger``, ``_partial_update``).

In a compiled block nothing runs beside the exchanges: a collective that is traced is followed by
its wait (``_functional_collectives.py``, ``_maybe_wrap_tensor``), and the compiler leaves it there
(``reorder_for_compute_comm_overlap`` is off).
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

# Bytes per element of a rank's output or of its queries' gradient, fp32 but for what attention
# made (2 bytes). Half of the pieces touch all queries; the other half only the later half, and
# then put the whole together from two parts.
_CAST, _DIFFERENCE, _WEIGHTED, _SUM, _JOINED = 6, 12, 8, 12, 8
_MERGE = _CAST + _DIFFERENCE + _WEIGHTED + _SUM
_ADD = 10


def gathered_ring(
    shard: Shard, queries: int, keys: int, attend: Callable[[int, str], Attention]
) -> tuple[list[Op], list[Op]]:
    """Forward and backward of attention over the ``cp`` ranks' shards of the sequence.

    Args:
        queries: elements of this rank's queries (and output).
        keys: elements of its keys and values.
        attend: the piece of a step, of the step and the pass (``fwd`` or ``bwd``).
    """
    ranks, element_bytes = shard.cp, shard.element_bytes
    overlaps, keys_bytes = 0 if shard.fusion == "compiled" else 1, keys * element_bytes
    gather: list[Op] = [
        Streaming("kv_join", "memcpy", 2 * keys_bytes, launches=1),
        Collective("kv_gather", "all_gather", ranks * keys_bytes, "cp", shard.dtype, overlaps),
    ]
    forward: list[Op] = [*gather, attend(0, "fwd")]
    backward: list[Op] = [*gather, attend(0, "bwd")]
    for step in range(1, ranks):
        forward += [
            attend(step, "fwd"),
            Streaming("merge", "elementwise", _half_and_joined(_MERGE, queries), launches=6),
        ]
        backward += [
            *_passed_on(keys, overlaps),
            attend(step, "bwd"),
            Streaming("query_grad", "elementwise", _half_and_joined(_ADD, queries), launches=2),
            Streaming("kv_grad", "elementwise", _half_and_joined(_ADD, keys), launches=4),
        ]
    # The last gradients reach their owner after all pieces are done.
    backward += _passed_on(keys, 0)
    forward.append(Streaming("merged_cast", "cast", (4 + element_bytes) * queries))
    backward.append(Streaming("grad_casts", "cast", (4 + element_bytes) * (queries + keys)))
    return forward, backward


def _half_and_joined(per_element: int, elements: int) -> int:
    """Mean bytes of an update of all elements and of one of half of them, joined again."""
    return (per_element + per_element // 2 + _JOINED) * elements // 2


def _passed_on(keys: int, overlaps: int) -> list[Op]:
    """Gradients of keys and values made one tensor and sent to the next rank."""
    return [
        Streaming("kv_grad_join", "memcpy", 2 * 4 * keys, launches=1),
        SendRecv("kv_grad_exchange", 4 * keys, "cp", overlaps),
    ]
