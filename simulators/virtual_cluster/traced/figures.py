"""What one step amounts to on one rank of every stage: from the built-in workload, from traces."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.workload.data_parallel import (
    Transfer,
    gather_parameters,
    reduce_gradients,
)
from trainscout.simulators.predictor.workload.ir import (
    Attention,
    Block,
    Collective,
    Gemm,
    GroupedGemm,
    HostSync,
    Op,
    SendRecv,
)
from trainscout.simulators.predictor.workload.program import Stage, Workload
from trainscout.simulators.predictor.workload.weights import parameter_bytes
from trainscout.simulators.virtual_cluster.traced.trace_to_blocks import ALONE, dimensions_of
from trainscout.simulators.virtual_cluster.traces.events import (
    OPTIMIZER,
    Event,
    Group,
    Parameters,
    Phase,
    PointToPoint,
    Trace,
)
from trainscout.simulators.virtual_cluster.traces.lowering.block import block_ops

# Two sources of one workload side by side, operation by operation.
#
# What is compared is what a layer must do whoever wrote it: matrix products, attention,
# communication, what activations it keeps. How many memory-bound kernels do the rest is the
# framework's affair and priced, not compared.

# An operation without its name: its class and fields.
Shape = tuple[object, ...]


@dataclass(frozen=True)
class Difference:
    """What only one of two blocks does: ``count`` times, ``source`` says which."""

    source: str
    what: Shape
    count: int

    def __str__(self) -> str:
        return f"only {self.source}: {self.count} x {' '.join(map(str, self.what))}"


def shapes(block: Block) -> Counter[Shape]:
    """Multiset of what a block multiplies, attends to, communicates and waits for."""
    return Counter(shape for shape in map(shape_of, block.ops) if shape is not None)


def shape_of(op: object) -> Shape | None:
    """What is compared of an operation; None for what is not."""
    if isinstance(op, Gemm):
        return ("gemm", op.layout, op.batch, op.m, op.n, op.k, op.dtype, op.accumulate)
    if isinstance(op, GroupedGemm):
        size = (op.groups, op.m_per_group, op.n, op.k)
        return ("grouped_gemm", op.layout, *size, op.dtype, op.accumulate)
    if isinstance(op, Attention):
        heads = (op.heads, op.kv_heads, op.seq_q, op.seq_k, op.head_dim, op.head_dim_v)
        return (f"attention_{op.pass_}", op.batch, *heads, "causal" if op.causal else "full")
    if isinstance(op, Collective):
        how = "beside" if op.overlaps else "blocking"
        return (op.kind, op.communicator, op.bytes, how)
    if isinstance(op, SendRecv):
        return ("send_recv", op.communicator, op.bytes)
    if isinstance(op, HostSync):
        return ("host_sync",)
    return None


def differences(ours: Counter[Shape], theirs: Counter[Shape]) -> list[Difference]:
    """What the built-in source does and the traced one does not, and the reverse; most frequent
    first."""
    found = [
        Difference(source, shape, count)
        for source, rest in (("builtin", ours - theirs), ("traced", theirs - ours))
        for shape, count in rest.items()
    ]
    return sorted(found, key=lambda each: (-each.count, str(each)))


@dataclass(frozen=True)
class Work:
    """One rank's work in one step.

    ``gemm_flops`` counts two for a multiplication and its addition. ``communicated_bytes`` maps a
    communicator to the sum of NCCL's sizes (``ir.Collective``), of messages to what is sent.
    ``shapes`` is the multiset of what is compared operation by operation.
    """

    parameter_bytes: int
    gemm_flops: int = 0
    communicated_bytes: Mapping[str, int] = field(default_factory=dict)
    shapes: Counter[Shape] = field(default_factory=Counter)


def work_of(ops: Iterable[tuple[Op, int]], parameter_bytes: int) -> Work:
    """Sum operations, each so many times."""
    flops = 0
    communicated: Counter[str] = Counter()
    shapes: Counter[Shape] = Counter()
    for op, count in ops:
        if isinstance(op, Gemm):
            flops += count * 2 * op.batch * op.m * op.n * op.k
        elif isinstance(op, GroupedGemm):
            flops += count * 2 * op.groups * op.m_per_group * op.n * op.k
        elif isinstance(op, Collective | SendRecv):
            communicated[op.communicator] += count * op.bytes
        shape = shape_of(op)
        if shape is not None:
            shapes[shape] += count
    return Work(parameter_bytes, flops, dict(communicated), shapes)


def traced_work(trace: Trace) -> Work:
    """What a traced rank does in its last step.

    Messages of the pipeline count when they are sent, as in the built-in source; between two
    stages Megatron-Core sends them over the group of all ranks.
    """
    events = _last_step(trace.events)
    groups = dimensions_of(event for event in trace.events if isinstance(event, Group))
    ops: list[tuple[Op, int]] = []
    for _, op in block_ops(events, groups):
        own = isinstance(op, Collective | SendRecv) and op.communicator == ALONE
        message = isinstance(op, SendRecv) and op.communicator != "cp"
        if not own and not message:
            ops.append((op, 1))
    ops += [
        (SendRecv("boundary", event.bytes, "pp"), 1)
        for event in events
        if isinstance(event, PointToPoint) and event.kind == "send" and groups[event.group] != "cp"
    ]
    held = next(event.bytes for event in trace.events if isinstance(event, Parameters))
    return work_of(ops, held)


def _last_step(events: Sequence[Event]) -> Sequence[Event]:
    """From the end of the optimizer before to the end of the last: what is gathered between two
    steps is so once, after the one or beside the other."""
    phases = [(index, event) for index, event in enumerate(events) if isinstance(event, Phase)]
    # Experts have an optimizer of their own: the last of a step counts.
    ends = {
        phase.step: after
        for (_, phase), (after, _) in itertools.pairwise(phases)
        if phase.phase == OPTIMIZER
    }
    *_, before, last = sorted(ends.values())
    return events[before:last]


def builtin_work(job: Job, workload: Workload, index: int) -> Work:
    """What the built-in source has stage ``index`` do in a step."""
    stage = workload.stages[index]
    held = stage.parameters.total * parameter_bytes(job)
    groups = workload.communicators
    ops = (
        (op, count)
        for op, count in _step_ops(job, workload, stage, index)
        if not isinstance(op, Collective | SendRecv) or groups[op.communicator].size > 1
    )
    return work_of(ops, held)


def _step_ops(job: Job, workload: Workload, stage: Stage, index: int) -> Iterable[tuple[Op, int]]:
    micro_batches = job.num_micro_batches
    for run in stage.runs:
        for block in (run.forward, run.backward):
            yield from ((op, run.count * micro_batches) for op in block.ops)
    for block in (stage.finish, stage.optimizer, *_data_parallel(job, stage)):
        yield from ((op, 1) for op in block.ops)
    sent = SendRecv("boundary", workload.stage_boundary_bytes, "pp")
    yield sent, micro_batches * _boundaries(job, index)


def _data_parallel(job: Job, stage: Stage) -> Iterable[Block]:
    """One step's gathers and reductions, without and with the distributed optimizer."""
    transfer = Transfer.of(job)
    if max(job.dp * job.recipe.cp, job.expert_dp) > 1:
        yield reduce_gradients(stage.parameters, transfer)
        if job.recipe.zero_stage:
            yield gather_parameters(stage.parameters, transfer)


def _boundaries(job: Job, stage: int) -> int:
    """Messages a stage sends for every micro-batch, both directions, over all its chunks."""
    recipe = job.recipe
    ends = (stage == 0) + (stage == recipe.pp - 1)
    return 0 if recipe.pp == 1 else 2 * recipe.vpp - ends
