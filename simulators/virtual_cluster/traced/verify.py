"""Re-checks recipes: Megatron-Core runs ranks of every stage, and the traces are replayed."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.communicators import spans
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.program import Stage, Workload
from trainscout.simulators.predictor.workload.weights.data_parallel import (
    Transfer,
    gather_parameters,
    reduce_gradients,
)
from trainscout.simulators.predictor.workload.weights.weights import parameter_bytes
from trainscout.simulators.virtual_cluster.execution.answer import TracedStep
from trainscout.simulators.virtual_cluster.execution.step import replay_ranks
from trainscout.simulators.virtual_cluster.traces import events
from trainscout.simulators.virtual_cluster.traces.files import read_trace, trace_path
from trainscout.simulators.virtual_cluster.traces.lowering.block import block_ops

from .cache import Refused
from .layer_spec import RankOfJob, check_traceable
from .recorder import ask_several
from .trace_to_blocks import ALONE, dimensions_of
from .verification import RankCheck, RankFigures, Verification

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


def shapes(block: ir.Block) -> Counter[Shape]:
    """Multiset of what a block multiplies, attends to, communicates and waits for."""
    return Counter(shape for shape in map(shape_of, block.ops) if shape is not None)


def shape_of(op: object) -> Shape | None:
    """What is compared of an operation; None for what is not."""
    if isinstance(op, ir.Gemm):
        return ("gemm", op.layout, op.batch, op.m, op.n, op.k, op.dtype, op.accumulate)
    if isinstance(op, ir.GroupedGemm):
        size = (op.groups, op.m_per_group, op.n, op.k)
        return ("grouped_gemm", op.layout, *size, op.dtype, op.accumulate)
    if isinstance(op, ir.Attention):
        heads = (op.heads, op.kv_heads, op.seq_q, op.seq_k, op.head_dim, op.head_dim_v)
        return (f"attention_{op.pass_}", op.batch, *heads, "causal" if op.causal else "full")
    if isinstance(op, ir.Collective):
        how = "beside" if op.overlaps else "blocking"
        return (op.kind, op.communicator, op.bytes, how)
    if isinstance(op, ir.SendRecv):
        return ("send_recv", op.communicator, op.bytes)
    if isinstance(op, ir.HostSync):
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


# What one step amounts to on one rank of every stage: from the built-in workload, from traces.


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


def work_of(ops: Iterable[tuple[ir.Op, int]], parameter_bytes: int) -> Work:
    """Sum operations, each so many times."""
    flops = 0
    communicated: Counter[str] = Counter()
    shapes: Counter[Shape] = Counter()
    for op, count in ops:
        if isinstance(op, ir.Gemm | ir.GroupedGemm):
            flops += count * ir.kernel_flops(op)
        elif isinstance(op, ir.Collective | ir.SendRecv):
            communicated[op.communicator] += count * op.bytes
        shape = shape_of(op)
        if shape is not None:
            shapes[shape] += count
    return Work(parameter_bytes, flops, dict(communicated), shapes)


def traced_work(trace: events.Trace) -> Work:
    """What a traced rank does in its last step.

    Messages of the pipeline count when they are sent, as in the built-in source; between two
    stages Megatron-Core sends them over the group of all ranks.
    """
    stretch = _last_step(trace.events)
    groups = dimensions_of(event for event in trace.events if isinstance(event, events.Group))
    ops: list[tuple[ir.Op, int]] = []
    for _, op in block_ops(stretch, groups):
        own = isinstance(op, ir.Collective | ir.SendRecv) and op.communicator == ALONE
        message = isinstance(op, ir.SendRecv) and op.communicator != "cp"
        if not own and not message:
            ops.append((op, 1))
    ops += [
        (ir.SendRecv("boundary", event.bytes, "pp"), 1)
        for event in stretch
        if isinstance(event, events.PointToPoint)
        and event.kind == "send"
        and groups[event.group] != "cp"
    ]
    held = next(event.bytes for event in trace.events if isinstance(event, events.Parameters))
    return work_of(ops, held)


def _last_step(stretch: Sequence[events.Event]) -> Sequence[events.Event]:
    """From the end of the optimizer before to the end of the last: what is gathered between two
    steps is so once, after the one or beside the other."""
    phases = [
        (index, event) for index, event in enumerate(stretch) if isinstance(event, events.Phase)
    ]
    # Experts have an optimizer of their own: the last of a step counts.
    ends = {
        phase.step: after
        for (_, phase), (after, _) in itertools.pairwise(phases)
        if phase.phase == events.OPTIMIZER
    }
    *_, before, last = sorted(ends.values())
    return stretch[before:last]


def builtin_work(job: Job, workload: Workload, index: int) -> Work:
    """What the built-in source has stage ``index`` do in a step."""
    stage = workload.stages[index]
    held = stage.parameters.total * parameter_bytes(job)
    groups = workload.communicators
    ops = (
        (op, count)
        for op, count in _step_ops(job, workload, stage, index)
        if not isinstance(op, ir.Collective | ir.SendRecv) or groups[op.communicator].size > 1
    )
    return work_of(ops, held)


def _step_ops(
    job: Job, workload: Workload, stage: Stage, index: int
) -> Iterable[tuple[ir.Op, int]]:
    micro_batches = job.num_micro_batches
    for run in stage.runs:
        for block in (run.forward, run.backward):
            yield from ((op, run.count * micro_batches) for op in block.ops)
    for block in (stage.finish, stage.optimizer, *_data_parallel(job, stage)):
        yield from ((op, 1) for op in block.ops)
    sent = ir.SendRecv("boundary", workload.stage_boundary_bytes, "pp")
    yield sent, micro_batches * _boundaries(job, index)


def _data_parallel(job: Job, stage: Stage) -> Iterable[ir.Block]:
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


# It happens inside Transformer Engine's kernels, where no trace looks.
_WITHOUT_TP_OVERLAP = "both sides without TP overlap, which cannot be traced"
# Micro-batches beyond those that fill a plain pipeline.
BEYOND_WARMUP = 2


def verify(job: Job) -> Verification:
    """Trace one rank of every pipeline stage of a valid job, and replay them together.

    TP overlap is left out on both sides. Whatever keeps the job from being traced or replayed is
    the ``problem`` of the answer.
    """
    micro_batches = traced_micro_batches(job)
    empty = Verification(job.recipe, micro_batches, job.num_micro_batches)
    if job.recipe.tp_comm_overlap:
        job = replace(job, recipe=replace(job.recipe, tp_comm_overlap=False))
        empty = replace(empty, notes=(_WITHOUT_TP_OVERLAP,))
    try:
        check_verifiable(job)
        # As many sequences as the traced micro-batches hold.
        sequences = job.dp * job.recipe.micro_batch * micro_batches
        shorter = replace(job, training=replace(job.training, global_batch_size=sequences))
        with tempfile.TemporaryDirectory(prefix="trainscout-ranks-") as directory:
            traces = trace_ranks(shorter, Path(directory))
        step = replay_ranks(traces, job.gpu, job.cluster, job.framework, host="declared")
    except (InputError, RuntimeError) as error:
        return replace(empty, problem=str(error))
    return compared(empty, shorter, traces, step)


def check_verifiable(job: Job) -> None:
    """Refuse what no rank of Megatron-Core can be traced for."""
    check_traceable(job)
    recipe = job.recipe
    split = "embedding_as_layer", "loss_as_layer", "pipeline_layout"
    if not job.model.is_plain and (recipe.vpp > 1 or any(getattr(recipe, each) for each in split)):
        problem = "is not how Megatron-Core 0.16 splits hybrid models: in one part a stage"
        raise InputError("recipe.vpp", recipe.vpp, problem, "1")
    if job.dispatcher == "deepep":
        problem = (
            "is traced by layers alone: whole ranks send a token to each GPU, not each domain"
        )
        raise InputError("recipe.moe_dispatcher", job.dispatcher, problem, "alltoall, allgather")
    if job.schedule != "1f1b":
        problem = "is not a schedule of Megatron-Core"
        raise InputError("recipe.schedule", job.schedule, problem, "1f1b")


def traced_micro_batches(job: Job) -> int:
    """As few as show each stage's most in flight and its period, which the others repeat."""
    stages = job.recipe.pp
    # The interleaved schedule goes by rounds of the pipeline, and its first takes two to fill.
    wanted = 2 * stages if job.recipe.vpp > 1 else stages + BEYOND_WARMUP
    return min(job.num_micro_batches, wanted)


def traced_ranks(job: Job) -> list[int]:
    """The first rank of every stage: first of its tensor, context and data-parallel peers."""
    ((stages, apart),) = spans(job)["pp"]
    return [stage * apart for stage in range(stages)]


def trace_ranks(job: Job, directory: Path) -> list[events.Trace]:
    """Trace one rank of every stage, in as many processes as there are cores for.

    Raises:
        RuntimeError: for what a rank raised, or when a process ends early.
    """
    asked = ranks_of_job(job, directory)
    return ask_for_ranks(asked, min(os.cpu_count() or 1, len(asked)))


def ranks_of_job(job: Job, directory: Path) -> list[RankOfJob]:
    """What a tracing process is asked for: two steps of one rank of every stage.

    Adam's state comes into being in the first, as short as the schedule can be; the second is
    like all that follow.
    """
    recipe = job.recipe
    steps = (recipe.pp if recipe.vpp > 1 else 1, job.num_micro_batches)
    return [RankOfJob(job, steps, rank, trace_path(directory, rank)) for rank in traced_ranks(job)]


def ask_for_ranks(asked: Sequence[RankOfJob], processes: int = 1) -> list[events.Trace]:
    """Trace ranks of jobs, all on the GPUs and nodes of the first.

    Raises:
        RuntimeError: for what a rank raised, or when a process ends early.
    """
    job = asked[0].job
    answers = ask_several(job.gpu, asked, processes, job.cluster.gpus_per_node)
    for each, answer in zip(asked, answers, strict=True):
        if isinstance(answer, Refused):
            raise RuntimeError(f"rank {each.rank}: {answer.reason}")
    return [read_trace(each.file) for each in asked]


def compared(
    empty: Verification, job: Job, traces: Sequence[events.Trace], step: TracedStep
) -> Verification:
    prediction, workload = ReplaySimulator().without_error_bar(job), build_workload(job)
    peaks = {rank.rank: rank.memory for rank in step.ranks}
    checks = []
    for stage, trace in enumerate(traces):
        rank = trace.header.rank
        ours = builtin_work(job, workload, stage)
        theirs = traced_work(trace)
        memory = prediction.memory.per_stage[stage]
        traced = peaks[rank]
        checks.append(
            RankCheck(
                rank,
                stage,
                _figures(ours, memory.peak_allocated_bytes, memory.peak_reserved_bytes),
                _figures(theirs, traced.peak_allocated_bytes, traced.peak_reserved_bytes),
                tuple(map(str, differences(ours.shapes, theirs.shapes))),
            )
        )
    return replace(
        empty,
        builtin_step_s=prediction.step_time_s,
        traced_step_s=step.step_time_s,
        builtin_parts_s=prediction.breakdown_s,
        traced_parts_s=step.breakdown_s,
        ranks=tuple(checks),
        notes=(*empty.notes, *_notes(prediction, step)),
    )


def _figures(work: Work, allocated: int, reserved: int) -> RankFigures:
    return RankFigures(
        allocated, reserved, work.parameter_bytes, work.gemm_flops, work.communicated_bytes
    )


def _notes(prediction: Prediction, step: TracedStep) -> tuple[str, ...]:
    fits = "fits" if step.fits else "does not fit"
    agrees = "" if step.fits == prediction.fits else ", unlike predicted"
    return (f"traced, it {fits} in memory{agrees}", *map(str, step.mismatches))
