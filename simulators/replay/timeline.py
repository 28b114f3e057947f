"""The step operation by operation: what a profiler would show, for every unique rank.

Block-level replay decides when each pass may start; here every pass is unrolled into its
operations on four streams (host dispatch, compute, communication, data-parallel) and played
by the same event loop, so that launch-bound stretches and overlaps inside a pass appear.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simulators.calibration import Calibration
from simulators.errors import InputError
from simulators.job import Job
from simulators.network.choice import CongestedNetwork
from simulators.replay.assemble import Assembler, Program
from simulators.replay.congestion import congestion_of
from simulators.replay.engine import Floats, Ints, run
from simulators.replay.graph import NEUTRAL_KIND, Kinds, make_tasks
from simulators.replay.prices import PricedOp, Pricer, kernel_seconds
from simulators.workload.ir import Block, Collective, SendRecv
from simulators.workload.megatron import build_workload
from simulators.workload.program import Workload
from simulators.workload.schedule import FORWARD, stage_order

if TYPE_CHECKING:
    from simulators.kernels.measured import MeasuredTable

STREAMS = ("host", "compute", "communication", "data_parallel")
HOST, COMPUTE, COMMUNICATION, DATA_PARALLEL = range(4)
# An operation outside the passes belongs to no micro-batch.
NO_MICRO_BATCH = -1


@dataclass(frozen=True)
class Timeline:
    """Operations of one step, one entry per operation in columns of equal length.

    ``stage``: pipeline stage (unique rank); ``stream``: index into ``STREAMS``; ``name``:
    index into ``names``; ``micro_batch``: or -1; times in seconds from the step's start.
    """

    names: tuple[str, ...]
    name: Ints
    stage: Ints
    stream: Ints
    micro_batch: Ints
    start_s: Floats
    end_s: Floats

    @property
    def step_time_s(self) -> float:
        return float(self.end_s.max())


def operation_timeline(
    job: Job,
    micro_batches: int | None = None,
    calibration: Calibration | None = None,
    measured: MeasuredTable | None = None,
    workload: Workload | None = None,
    network: CongestedNetwork | None = None,
) -> Timeline:
    """Unroll one step of a valid job.

    Args:
        job: the question.
        micro_batches: how many per replica to play, default all; a multiple of ``pp`` when
            interleaved. The cost is proportional to it.
        calibration, measured: as in ``ReplaySimulator``.
        workload: the job's, where it is not the built-in source's.
        network: as in ``ReplaySimulator``.

    Raises:
        InputError: for a number of micro-batches the schedule cannot run.
    """
    count = job.num_micro_batches if micro_batches is None else micro_batches
    unit = job.recipe.pp if job.recipe.vpp > 1 else 1
    if count < 1 or count % unit or count > job.num_micro_batches:
        allowed = f"1..{job.num_micro_batches}, in multiples of {unit}"
        raise InputError("timeline.micro_batches", count, "cannot be scheduled", allowed)
    workload = workload or build_workload(job)
    pricer = Pricer(
        job.gpu,
        job.network,
        job.framework,
        workload.communicators,
        calibration,
        measured,
        congestion_of(job, network),
    )
    assembler = Assembler(job, workload, pricer)
    return _Unroll(job, workload, pricer, assembler, assembler.assemble(count), count).play()


class _Unroll:
    """Grows the operation-level program from the block-level one."""

    def __init__(
        self,
        job: Job,
        workload: Workload,
        pricer: Pricer,
        assembler: Assembler,
        program: Program,
        micro_batches: int,
    ) -> None:
        self.job = job
        self.workload = workload
        self.pricer = pricer
        self.assembler = assembler
        self.program = program
        self.micro_batches = micro_batches
        self.kinds = Kinds()
        self.names: dict[str, int] = {}
        # Columns of the operations, then the edges between them.
        self.work: list[float] = []
        self.kind: list[int] = []
        self.name: list[int] = []
        self.place: list[tuple[int, int, int]] = []
        self.edges: list[tuple[int, int, float]] = []
        # First and last operations that stand for a block-level task.
        self.entries: dict[int, list[int]] = {}
        self.exits: dict[int, list[int]] = {}
        self.operations: dict[str, list[tuple[PricedOp, float]]] = {}

    def play(self) -> Timeline:
        for stage in range(self.job.recipe.pp):
            self.unroll_stage(stage)
        self.unroll_others()
        for before, after, lag in zip(*self.program.edges, strict=True):
            for source in self.exits[int(before)]:
                for target in self.entries[int(after)]:
                    self.edges.append((source, target, float(lag)))
        return self.run()

    def add(self, name: str, seconds: float, kind: int, stage: int, stream: int, mb: int) -> int:
        self.work.append(seconds)
        self.kind.append(kind)
        self.name.append(self.names.setdefault(name, len(self.names)))
        self.place.append((stage, stream, mb))
        return len(self.work) - 1

    def unroll_stage(self, stage: int) -> None:
        """Every task of a stage's compute stream, in order."""
        waits_for: list[int] = []
        for task, blocks, micro_batch, sent_s in self.contents(stage):
            entries: list[int] = []
            kernel = communication = -1
            overlapped = 0
            host = -1
            for priced, launch_s in (op for block in blocks for op in self.priced(block)):
                launched = host
                host = self.add(
                    "launch",
                    launch_s,
                    NEUTRAL_KIND,
                    stage,
                    HOST,
                    micro_batch,
                )
                if launched < 0:
                    # A blocking transfer makes the host wait for the previous pass.
                    self.edges += [(before, host, 0.0) for before in waits_for]
                number = self.device_op(priced, stage, micro_batch)
                self.edges.append((host, number, 0.0))
                if priced.communication is None:
                    if overlapped:
                        overlapped -= 1
                    elif communication >= 0:
                        self.edges.append((communication, number, 0.0))
                        communication = -1
                    if kernel < 0:
                        entries.append(number)
                    kernel = number
                else:
                    if kernel >= 0:
                        self.edges.append((kernel, number, 0.0))
                    if communication < 0 and (not entries or kernel < 0):
                        entries.append(number)
                    communication = number
                    assert isinstance(priced.op, Collective | SendRecv)
                    overlapped = priced.op.overlaps
            ends = [number for number in (kernel, communication) if number >= 0]
            if sent_s:
                send = self.add("send", sent_s, NEUTRAL_KIND, stage, COMMUNICATION, micro_batch)
                self.edges += [(number, send, 0.0) for number in ends]
                ends = [send]
            # What follows on this stage starts when all of this task is done.
            self.edges += [(before, entry, 0.0) for before in waits_for for entry in entries]
            waits_for = ends or waits_for
            self.entries[task] = entries or ends
            self.exits[task] = ends

    def device_op(self, priced: PricedOp, stage: int, micro_batch: int) -> int:
        price = priced.communication
        if price is None:
            kind, stream = self.kinds.compute(1.0, kernel_seconds([priced])), COMPUTE
        else:
            kind = self.kinds.communication(price.channels, price.wire_bytes_per_s)
            stream = COMMUNICATION
        return self.add(priced.op.name, priced.seconds, kind, stage, stream, micro_batch)

    def contents(self, stage: int) -> Iterator[tuple[int, list[Block], int, float]]:
        """Task, blocks, micro-batch and blocking transfer of a stage's compute tasks."""
        recipe = self.job.recipe
        tasks = self.program.compute_tasks[stage]
        starts = self.program.pass_start[stage]
        passes = self.program.pass_tasks[stage]
        stops = np.append(starts[1:], passes)
        order = stage_order(recipe.schedule, stage, recipe.pp, recipe.vpp, self.micro_batches)
        for (direction, chunk, micro), start, stop in zip(order.T, starts, stops, strict=True):
            whole = self.workload.stages[stage].chunks[chunk]
            sent_s = self.assembler.sent_s(stage, int(chunk), int(direction))
            if stop - start == 1:
                runs = whole.runs if direction == FORWARD else whole.runs[::-1]
                blocks = [
                    run.forward if direction == FORWARD else run.backward
                    for run in runs
                    for _ in range(run.count)
                ]
                yield int(tasks[start]), blocks, int(micro), sent_s
                continue
            segments = self.assembler.passes.segments(whole, int(direction))
            for index, segment in enumerate(segments):
                sent = sent_s if index == len(segments) - 1 else 0.0
                yield int(tasks[start + index]), list(segment.blocks), int(micro), sent
        for task in tasks[passes:]:
            yield int(task), [self.program.blocks[int(task)]], NO_MICRO_BATCH, 0.0

    def unroll_others(self) -> None:
        """Data-parallel communication, one entry a task, and the barrier of the step's end."""
        for task in range(len(self.program.tasks.work)):
            if task in self.entries:
                continue
            stream = int(self.program.tasks.task_streams[task])
            stage = int(self.program.tasks.stream_rank[stream])
            block = self.program.blocks.get(task)
            name = block.name if block is not None else "barrier"
            kind = NEUTRAL_KIND
            if block is not None:
                priced = self.pricer.block(block)
                kind = self.kinds.communication(priced.channels, priced.wire_bytes_per_s)
            seconds = float(self.program.tasks.work[task])
            number = self.add(name, seconds, kind, stage, DATA_PARALLEL, NO_MICRO_BATCH)
            self.entries[task] = self.exits[task] = [number]

    def priced(self, block: Block) -> list[tuple[PricedOp, float]]:
        """A block's device operations and the host's seconds for each."""
        if block.digest not in self.operations:
            operations = self.pricer.operations(block)
            launches = self.pricer.launch_seconds(block, operations)
            self.operations[block.digest] = list(zip(operations, launches, strict=True))
        return self.operations[block.digest]

    def run(self) -> Timeline:
        stage, stream, micro_batch = (np.array(column) for column in zip(*self.place, strict=True))
        # The barrier sits on a rank of its own, behind the last stage.
        ranks = int(stage.max()) + 1
        lane = stage * len(STREAMS) + stream
        by_lane = np.argsort(lane, kind="stable")
        bounds = np.searchsorted(lane[by_lane], np.arange(ranks * len(STREAMS) + 1))
        orders = [by_lane[low:high] for low, high in itertools.pairwise(bounds)]
        for rank in range(self.job.recipe.pp):
            at = rank * len(STREAMS) + DATA_PARALLEL
            orders[at] = self.in_block_order(orders[at], rank)
        before, after, lags = zip(*self.edges, strict=True)
        tasks = make_tasks(
            np.array(self.work),
            np.array(self.kind),
            (np.array(before), np.array(after), np.array(lags)),
            orders,
            np.arange(ranks * len(STREAMS)) // len(STREAMS),
            self.kinds.slowdowns(self.job.gpu),
        )
        times = run(tasks)
        shown = stage < self.job.recipe.pp
        return Timeline(
            names=tuple(self.names),
            name=np.array(self.name)[shown],
            stage=stage[shown],
            stream=stream[shown],
            micro_batch=micro_batch[shown],
            start_s=times.start[shown],
            end_s=times.end[shown],
        )

    def in_block_order(self, numbers: Ints, stage: int) -> Ints:
        """The data-parallel stream's operations in the order block-level replay issues them."""
        program = self.program.tasks
        stream = np.flatnonzero(program.stream_rank == stage)[1]
        tasks = program.stream_tasks[program.order_start[stream] : program.order_start[stream + 1]]
        ordered = np.array([self.entries[int(task)][0] for task in tasks], dtype=np.int64)
        return ordered if len(ordered) else numbers
