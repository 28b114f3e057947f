"""What tests of blocks count in them."""

from __future__ import annotations

from trainscout.simulators.predictor.workload.ir import Block, Collective, Gemm

# Bytes one rank sends over its links, in units of the collective's size times (t - 1)/t.
STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


def wire_bytes(block: Block, communicator: str, *, exposed: bool = False) -> int:
    return sum(
        STEPS[op.kind] * op.bytes
        for op in block.ops
        if isinstance(op, Collective) and op.communicator == communicator
        if not (exposed and op.overlaps)
    )


def flops(block: Block) -> int:
    return sum(2 * op.m * op.n * op.k * op.batch for op in block.ops if isinstance(op, Gemm))
