"""The step pass by pass: what every pipeline stage does when, as block-level replay plays it.

A row is one forward or backward pass of one micro-batch through one chunk, a transfer to a
neighbouring stage, a gather or reduction of parameters or gradients, or what ends the step.
Rows of one ``lane`` of one stage never overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainscout.simulators.predictor.workload.ir import Alloc, Block, Free, HostSync
from trainscout.simulators.predictor.workload.program import Chunk
from trainscout.simulators.predictor.workload.schedules.passes import (
    BACKWARD,
    INPUT_GRADIENT,
    PASS_NAMES,
)
from trainscout.simulators.predictor.workload.schedules.schedule import stage_order
from trainscout.simulators.predictor.workload.weights.data_parallel import GATHER

from .engine import Floats, Ints, Times, run
from .step_program import StepProgram
from .structure import COMPUTE_STREAM

if TYPE_CHECKING:
    from .prices import Pricer

PASS_KINDS = (*PASS_NAMES, "send", "gather", "reduce", "finish", "optimizer")
LANES = ("compute", "data_parallel")
COMPUTE_LANE, DATA_PARALLEL_LANE = range(2)
# What belongs to no micro-batch or chunk.
NONE = -1


@dataclass(frozen=True)
class PassTimeline:
    """Passes of one step, one entry per row in columns of equal length, by stage and start.

    ``stage``: pipeline stage (unique rank); ``lane``: index into ``LANES``; ``kind``: index into
    ``PASS_KINDS``; ``chunk`` (virtual stage on that rank) and ``micro_batch``: -1 where there is
    none; times in seconds from the step's start. ``recompute_s``: how much of a backward pass
    repeats its forward, in seconds undisturbed by what runs beside it; 0 elsewhere.

    ``send`` rows are transfers that hold their sender up; those that run beside compute are no
    rows. ``finish`` is what must be whole before the optimizer (gradient norm, tied embeddings).
    ``micro_batches`` of the step's ``num_micro_batches`` were played.
    """

    stage: Ints
    lane: Ints
    kind: Ints
    chunk: Ints
    micro_batch: Ints
    start_s: Floats
    end_s: Floats
    recompute_s: Floats
    micro_batches: int
    num_micro_batches: int

    @property
    def step_time_s(self) -> float:
        """When the last row ends; that of the whole step where all micro-batches were played."""
        return float(self.end_s.max())


def passes_of(step: StepProgram) -> PassTimeline:
    """Play a step pass by pass."""
    times = run(step.program.tasks)
    rows = [
        row
        for stage in range(step.job.recipe.pp)
        for row in (*_compute_rows(step, times, stage), *_data_parallel_rows(step, times, stage))
    ]
    columns = np.array(rows, dtype=np.float64)
    columns = columns[np.lexsort((columns[:, 1], columns[:, 5], columns[:, 0]))]
    stage, lane, kind, chunk, micro_batch = columns[:, :5].astype(np.int64).T
    return PassTimeline(
        stage=stage,
        lane=lane,
        kind=kind,
        chunk=chunk,
        micro_batch=micro_batch,
        start_s=columns[:, 5],
        end_s=columns[:, 6],
        recompute_s=columns[:, 7],
        micro_batches=step.micro_batches,
        num_micro_batches=step.job.num_micro_batches,
    )


# Stage, lane, kind, chunk, micro-batch, start, end, recomputation.
_Row = tuple[float, ...]


def _row(
    stage: int,
    lane: int,
    kind: str,
    start_s: float,
    end_s: float,
    chunk: int = NONE,
    micro_batch: int = NONE,
    recompute_s: float = 0.0,
) -> _Row:
    return (stage, lane, PASS_KINDS.index(kind), chunk, micro_batch, start_s, end_s, recompute_s)


def _compute_rows(step: StepProgram, times: Times, stage: int) -> Iterator[_Row]:
    """Passes with the transfers that hold them up, then what ends the step."""
    recipe, program = step.job.recipe, step.program
    tasks = program.structure.compute_tasks[stage]
    firsts, lasts = tasks[program.structure.pass_start[stage]], program.structure.pass_end[stage]
    order = stage_order(step.job.schedule, stage, recipe.pp, recipe.vpp, step.micro_batches)
    chunks = step.workload.stages[stage].chunks
    recomputed = [recompute_seconds(step.pricer, chunk) for chunk in chunks]
    for (direction, chunk, micro), first, last in zip(order.T, firsts, lasts, strict=True):
        way, number = int(direction), int(chunk)
        task = int(last)
        start, end = float(times.start[first]), float(times.end[task])
        done = end
        sent_s = step.assembler.sent_s(stage, number, way)
        if sent_s:
            # The last thing its task does; what slows the task down slows it too.
            done -= (end - float(times.start[task])) * sent_s / float(program.tasks.work[task])
        again_s = recomputed[number] if way in (BACKWARD, INPUT_GRADIENT) else 0.0
        kind = PASS_NAMES[way]
        yield _row(stage, COMPUTE_LANE, kind, start, done, number, int(micro), again_s)
        if sent_s:
            yield _row(stage, COMPUTE_LANE, "send", done, end, number, int(micro))
    for task in tasks[program.structure.pass_tasks[stage] :]:
        kind = _kind_of(step, stage, program.blocks[int(task)])
        yield _row(stage, COMPUTE_LANE, kind, float(times.start[task]), float(times.end[task]))


def _data_parallel_rows(step: StepProgram, times: Times, stage: int) -> Iterator[_Row]:
    tasks = step.program.tasks
    streams = np.flatnonzero(tasks.stream_rank == stage)
    for stream in streams[COMPUTE_STREAM + 1 :]:
        for task in tasks.stream_tasks[tasks.order_start[stream] : tasks.order_start[stream + 1]]:
            kind = _kind_of(step, stage, step.program.blocks[int(task)])
            start, end = float(times.start[task]), float(times.end[task])
            yield _row(stage, DATA_PARALLEL_LANE, kind, start, end)


def _kind_of(step: StepProgram, stage: int, block: Block) -> str:
    """What a task that is no pass does."""
    if block is step.workload.stages[stage].finish:
        return "finish"
    if block is step.workload.stages[stage].optimizer:
        return "optimizer"
    return "gather" if block.name == GATHER else "reduce"


def recompute_seconds(pricer: Pricer, chunk: Chunk) -> float:
    """Seconds of one backward pass over ``chunk`` that repeat its forward pass."""
    seconds = 0.0
    for each in chunk.runs:
        if each.backward.forward_ops:
            again = recomputed_operations(each.forward, each.backward)
            operations = pricer.operations(each.backward)
            repeated = zip(operations, again, strict=True)
            seconds += each.count * sum(priced.seconds for priced, is_it in repeated if is_it)
    return seconds


def recomputed_operations(forward: Block, backward: Block) -> list[bool]:
    """Which device operations of a backward block repeat some of the forward block's.

    By name and kind; where names do not tell (traced blocks name kernels), the first ones, as
    where layers are recomputed whole.
    """
    known = {_identity(op) for op in forward.ops}
    device = [op for op in backward.ops if not isinstance(op, Alloc | Free | HostSync)]
    again = [_identity(op) in known for op in device]
    if sum(again) != backward.forward_ops:
        return [index < backward.forward_ops for index in range(len(device))]
    return again


def _identity(op: object) -> tuple[object, ...]:
    return type(op), *(getattr(op, name, None) for name in ("name", "kind", "pass_"))
