"""Expert layers whose token exchange runs beside the kernels of another micro-batch."""

from __future__ import annotations

import functools
from dataclasses import replace

from trainscout.simulators.predictor.workload.ir import (
    Alloc,
    Block,
    Collective,
    Free,
    HostSync,
    Op,
)
from trainscout.simulators.predictor.workload.moe import is_exchange


@functools.lru_cache(maxsize=4096)
def paired(forward: Block, backward: Block) -> tuple[Block, Block]:
    """The blocks of an expert layer under ``overlap_moe_expert_parallel_comm``.

    Megatron-LM runs the forward pass of one micro-batch and the backward pass of another layer
    by layer together: dispatches beside the other's experts, combines beside its attention. A
    pair does the work of both passes of a layer, so each exchange is put beside the kernels of
    its own pass. Exchanges that recomputation repeats stay where they are.
    """
    attention, experts, dispatch, combine = _split(forward)
    ahead = (*_beside(combine, attention), *_beside(dispatch, experts))
    attention, experts, dispatch, combine = _split(backward)
    back = (*_beside(dispatch, experts), *_beside(combine, attention))
    return replace(forward, ops=ahead), replace(backward, ops=back)


def _split(block: Block) -> tuple[tuple[Op, ...], tuple[Op, ...], Collective, Collective]:
    """Operations of the attention and of the expert sub-layer, and the two exchanges."""
    exchanges = [op for op in block.ops if isinstance(op, Collective) and is_exchange(op)]
    dispatch, combine = exchanges[-2:]
    names = [getattr(op, "name", "") for op in block.ops]
    meeting = [index for index, name in enumerate(names) if name.startswith("attention_residual")]
    rest = [op for op in block.ops[: meeting[0]] if op not in (dispatch, combine)]
    others = [op for op in block.ops[meeting[0] :] if op not in (dispatch, combine)]
    if meeting[0] < names.index(dispatch.name):
        return tuple(rest), tuple(others), dispatch, combine
    return tuple(others), tuple(rest), dispatch, combine


def _beside(exchange: Collective, ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """The exchange, followed by the operations it runs beside."""
    running = sum(not isinstance(op, Alloc | Free | HostSync) for op in ops)
    return replace(exchange, overlaps=running), *ops
