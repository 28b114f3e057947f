"""The kinds of passes over a chunk, and what each runs.

Where a schedule splits the backward pass, the products that make gradients of weights wait, with
what belongs to them, and keep what they multiply until then.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from trainscout.simulators.predictor.question.training import PRECISION_BITS
from trainscout.simulators.predictor.workload.ir import (
    Alloc,
    Block,
    Collective,
    Free,
    Gemm,
    GroupedGemm,
    HostSync,
    Op,
    SendRecv,
)
from trainscout.simulators.predictor.workload.program import Chunk

FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = range(4)
KINDS = 4
PASS_NAMES = ("forward", "backward", "input_gradient", "weight_gradient")


def pass_blocks(chunk: Chunk, kind: int) -> list[tuple[Block, int]]:
    """What a pass over a chunk runs, in order, each block so many times."""
    if kind == FORWARD:
        return [(run.forward, run.count) for run in chunk.runs]
    return [(backward_block(run.backward, kind), run.count) for run in reversed(chunk.runs)]


def backward_block(backward: Block, kind: int) -> Block:
    """What of a backward block a pass of some kind other than forward runs."""
    return backward if kind == BACKWARD else _halves(backward)[kind == WEIGHT_GRADIENT]


@functools.lru_cache(maxsize=4096)
def _halves(backward: Block) -> tuple[Block, Block]:
    """The gradient of a block's input, and of its weights."""
    waits = [_is_weight_gradient(op) for op in backward.ops]
    own = [_overlapping_own(backward.ops, index, waits) for index in range(len(waits))]
    first, second = (
        tuple(op for op, late in zip(own, waits, strict=True) if late == half)
        for half in (False, True)
    )
    return (
        replace(backward, name=f"{backward.name}_input", ops=first),
        Block(f"{backward.name}_weights", second),
    )


def _is_weight_gradient(op: Op) -> bool:
    """Products that make gradients of weights, the gathers of their inputs, and what adds up."""
    if isinstance(op, Gemm) and op.name.endswith("_wgrad"):
        # Attention's own products, one for each head, have no weights.
        return op.batch == 1
    name = getattr(op, "name", "")
    return name.endswith(("_wgrad", "_accumulate", "_bias_grad", "_gather_again"))


def _overlapping_own(ops: tuple[Op, ...], index: int, waits: list[bool]) -> Op:
    """An operation, beside those of its own half that it ran beside."""
    op = ops[index]
    if not isinstance(op, Collective | SendRecv) or not op.overlaps:
        return op
    device = [at for at in range(index + 1, len(ops)) if not isinstance(ops[at], _NO_KERNEL)]
    own = sum(waits[at] == waits[index] for at in device[: op.overlaps])
    return replace(op, overlaps=own)


_NO_KERNEL = (Alloc, Free, HostSync)


def waiting_bytes(chunk: Chunk, tp: int) -> int:
    """What is kept of one micro-batch between both halves of its backward pass: both operands of
    every product that waits (for a transformer layer the 32 bytes per token and channel of Qi et
    al. 2023, table 1). Inputs that are gathered again are kept as the rank's share."""
    return sum(_operand_bytes(run.backward, tp) * run.count for run in chunk.runs)


@functools.lru_cache(maxsize=4096)
def _operand_bytes(backward: Block, tp: int) -> int:
    ops = [op for op in backward.ops if _is_weight_gradient(op)]
    again = {op.name.removesuffix("_gather_again") for op in ops if isinstance(op, Collective)}
    gradients, inputs = 0.0, {}
    for op in ops:
        if isinstance(op, GroupedGemm):
            gradients += op.groups * op.m_per_group * (op.n + op.k) * _element_bytes(op.dtype)
        elif isinstance(op, Gemm):
            # Projections that are products of their own read one input.
            name = re.sub(r"(_\d+)?_wgrad$", "", op.name)
            gradients += op.k * op.m * _element_bytes(op.dtype)
            inputs[name] = op.k * op.n * _element_bytes(op.dtype) / (tp if name in again else 1)
    return int(gradients + sum(inputs.values()))


def _element_bytes(dtype: str) -> float:
    # 16 values of four bits share a scale of eight.
    return {"tf32": 4, "fp4": 9 / 16}.get(dtype) or PRECISION_BITS[dtype] / 8
