"""The same step as predicted: what one rank runs, operation by operation, in launch order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainscout.simulators.predictor.kernels.observed import profiled_class
from trainscout.simulators.predictor.replay.priced import DeviceOp
from trainscout.simulators.predictor.replay.step_program import StepProgram
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.schedules.passes import FORWARD, pass_blocks
from trainscout.simulators.predictor.workload.schedules.schedule import stage_order

END = "end"
PASSES = ("forward", "backward", END)
"""What a block is part of; ``end``: gradient exchange, norm and optimizer."""


@dataclass(frozen=True, slots=True)
class PredictedOperation:
    """One operation of a rank's step: part of which block and pass, and its own seconds, on an
    average GPU (stragglers are waited for, and are no property of a kernel), and ``host_s``, the
    host's for launching it. ``group_size``: ranks that communicate in it, 0 for kernels."""

    block: str
    pass_: str
    op: DeviceOp
    seconds: float
    group_size: int = 0
    host_s: float = 0.0


def class_of(op: DeviceOp) -> str:
    """The class that a profiler's kernels of such an operation are of (``kernel_classes``)."""
    if isinstance(op, ir.Collective):
        return "collective"
    if isinstance(op, ir.SendRecv):
        return "point_to_point"
    if isinstance(op, ir.HostUpdate):
        return "optimizer"
    return profiled_class(op)


def predicted_operations(step: StepProgram, stage: int) -> tuple[PredictedOperation, ...]:
    """Everything that a rank of ``stage`` launches in a step: passes in the order of its
    schedule, then what travels once a step, then the step's end."""
    found: list[PredictedOperation] = []
    made: dict[tuple[ir.Digest, str], list[PredictedOperation]] = {}
    for block, pass_ in _blocks(step, stage):
        key = block.digest, pass_
        if key not in made:
            made[key] = _priced(step, block, pass_)
        found += made[key]
    return tuple(found)


def _priced(step: StepProgram, block: ir.Block, pass_: str) -> list[PredictedOperation]:
    alone = 1 + step.pricer.excess
    operations = step.pricer.operations(block)
    host_s = step.pricer.launch_seconds(block, operations)
    return [
        PredictedOperation(
            block.name,
            pass_,
            priced.op,
            priced.seconds / (alone if priced.communication is None else 1.0),
            _group_size(step, priced.op),
            launching_s,
        )
        for priced, launching_s in zip(operations, host_s, strict=True)
    ]


def _group_size(step: StepProgram, op: DeviceOp) -> int:
    if isinstance(op, ir.SendRecv):
        return 2
    return step.pricer.communicators[op.communicator].size if isinstance(op, ir.Collective) else 0


def _blocks(step: StepProgram, stage: int) -> Iterator[tuple[ir.Block, str]]:
    recipe = step.job.recipe
    chunks = step.workload.stages[stage].chunks
    order = stage_order(step.job.schedule, stage, recipe.pp, recipe.vpp, step.micro_batches)
    for direction, chunk, _ in order.T.tolist():
        for block, count in pass_blocks(chunks[chunk], direction):
            for _ in range(count):
                yield block, PASSES[direction != FORWARD]
    tasks = step.program.tasks
    ends = {id(step.workload.stages[stage].finish), id(step.workload.stages[stage].optimizer)}
    own = [
        step.program.blocks[task]
        for task in sorted(step.program.blocks)
        if int(tasks.stream_rank[int(tasks.task_streams[task])]) == stage
    ]
    yield from ((block, END) for block in own if id(block) not in ends)
    yield step.workload.stages[stage].finish, END
    yield step.workload.stages[stage].optimizer, END


def shape_text(ops: Sequence[DeviceOp]) -> str:
    """``32768x1024x1024``: what an operation is about, in a table."""
    return " + ".join(dict.fromkeys(_shape(op) for op in ops))


def _shape(op: DeviceOp) -> str:
    if isinstance(op, ir.Gemm):
        batch = f"{op.batch} x " if op.batch > 1 else ""
        return f"{batch}{op.m}x{op.n}x{op.k} {op.layout}"
    if isinstance(op, ir.GroupedGemm):
        return f"{op.groups} groups of {op.m_per_group}x{op.n}x{op.k} {op.layout}"
    if isinstance(op, ir.Attention):
        return f"{op.batch}x{op.heads} heads {op.seq_q}x{op.seq_k}x{op.head_dim}"
    if isinstance(op, ir.Convolution):
        sizes = "x".join(map(str, op.in_size))
        return f"{op.batch}x{op.in_channels}x{sizes} to {op.out_channels}, {op.pass_}"
    if isinstance(op, ir.Streaming):
        return f"{op.bytes / 2**20:.1f} MiB"
    if isinstance(op, ir.HostUpdate):
        return f"{op.host_bytes / 2**20:.1f} MiB of the host's"
    return f"{op.bytes / 2**20:.1f} MiB over {op.communicator}"
