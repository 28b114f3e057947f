"""What tests of blocks count in them."""

from __future__ import annotations

from typing import Any

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.workload.ir import (
    Attention,
    Block,
    Collective,
    Gemm,
    GroupedGemm,
    kernel_flops,
)
from trainscout.simulators.predictor.workload.megatron import build_workload

# Bytes one rank sends over its links, in units of the collective's size times (t - 1)/t.
STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}

PRODUCTS = Gemm | GroupedGemm


def wire_bytes(block: Block, communicator: str, *, exposed: bool = False) -> int:
    return sum(
        STEPS[op.kind] * op.bytes
        for op in block.ops
        if isinstance(op, Collective) and op.communicator == communicator
        if not (exposed and op.overlaps)
    )


def flops(block: Block) -> int:
    """Of its products, without attention."""
    return sum(kernel_flops(op) for op in block.ops if isinstance(op, PRODUCTS))


def operations(job: Job, way: str, kinds: Any = Gemm | Attention) -> list[Any]:
    """Those of a micro-batch's ``forward`` or ``backward`` on all stages, as often as they run."""
    runs = [
        run for stage in build_workload(job).stages for chunk in stage.chunks for run in chunk.runs
    ]
    return [
        op for run in runs for op in getattr(run, way).ops * run.count if isinstance(op, kinds)
    ]


def work(job: Job, way: str, kinds: Any = Gemm | Attention) -> int:
    """Their FLOPs."""
    return sum(map(kernel_flops, operations(job, way, kinds)))
