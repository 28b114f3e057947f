"""Unrolls a step into its operations, and plays them.

Block-level replay decides when each pass may start; here every pass is unrolled into its
operations on streams (host dispatch, compute, communication, data-parallel, pipeline) and played
by the same event loop, so that launch-bound stretches and overlaps inside a pass appear.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.collectives.price import CollectivePrice
from trainscout.simulators.predictor.question.schedules import crossed
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.schedules.passes import FORWARD, PASS_NAMES

from .device_block import kernel_seconds
from .engine import Ints, Times, run
from .graph import NEUTRAL_KIND, Kinds, make_tasks
from .priced import PricedOp
from .step_program import StepProgram
from .timeline import (
    COMMUNICATION,
    COMPUTE,
    DATA_PARALLEL,
    HOST,
    NONE,
    PIPELINE,
    STREAMS,
    Passes,
    Timeline,
)


def unroll(step: StepProgram) -> Timeline:
    """The operations of a step; the cost is proportional to its micro-batches."""
    return _Unroll(step).play()


@dataclass(frozen=True)
class _Task:
    """A task of a compute stream: the blocks it runs, as part of which pass, and how long copies
    to the host and the transfer block it that end it."""

    number: int
    blocks: list[ir.Block]
    pass_: int
    micro_batch: int
    direction: int
    copied_s: float
    sent_s: float


@dataclass(frozen=True)
class _Launched:
    """A device operation and the host's seconds for it; ``after_sync``: the host has waited for
    everything before it."""

    operation: int
    host_s: float
    after_sync: bool


@dataclass(frozen=True)
class _OverlappedTransfer:
    """A transfer that runs beside compute: after the rows ``exits`` of one stage, before
    ``entries`` of another. It takes time but no stream: it is no engine task."""

    operation: int
    stage: int
    to_stage: int
    exits: list[int]
    entries: list[int]
    lag_s: float


class _Unroll:
    def __init__(self, step: StepProgram) -> None:
        self.step = step
        self.program = step.program
        self.stages = step.job.recipe.pp
        self.kinds = Kinds()
        # Distinct operations: None (a launch), then as they are met.
        self.operations: list[PricedOp | None] = [None]
        self.priced: dict[ir.Digest, list[_Launched]] = {}
        self.boundaries: dict[int, int] = {}
        # Columns of the rows, then the edges between them.
        self.work: list[float] = []
        self.kind: list[int] = []
        self.rows: list[tuple[int, int, int, int, int, int]] = []
        self.edges: list[tuple[int, int, float]] = []
        self.overlapped: list[_OverlappedTransfer] = []
        self.sends: list[tuple[int, int]] = []
        self.block_names: list[str] = []
        self.block_passes: list[int] = []
        self.passes: list[tuple[str, int, int, int]] = []
        # First and last rows that stand for a block-level task, and all of a data-parallel one.
        self.entries: dict[int, list[int]] = {}
        self.exits: dict[int, list[int]] = {}
        self.chains: dict[int, list[int]] = {}
        # Rows of tasks without operations.
        self.placeholders: list[int] = []

    def play(self) -> Timeline:
        for stage in range(self.stages):
            self.unroll_stage(stage)
        self.unroll_others()
        self.join_tasks()
        return self.run()

    def add(
        self,
        operation: int,
        seconds: float,
        kind: int,
        stage: int,
        stream: int,
        micro_batch: int = NONE,
        block: int = NONE,
        launched_by: int = NONE,
    ) -> int:
        self.work.append(seconds)
        self.kind.append(kind)
        self.rows.append((operation, stage, stream, micro_batch, block, launched_by))
        return len(self.work) - 1

    def unroll_stage(self, stage: int) -> None:
        """Every task of a stage's compute stream, in order."""
        waits_for: list[int] = []
        # A blocking transfer makes the host wait for the previous pass, and so does the step's
        # end, which reads the gradients' norm.
        blocking = self.stages > 1 and self.step.assembler.blocking_sends
        pass_ = NONE
        for task in self.contents(stage):
            entries: list[int] = []
            kernel = communication = NONE
            overlapped = 0
            host = NONE
            for launched, block in self.device_operations(task):
                operation = launched.operation
                priced = self.operations[operation]
                assert priced is not None
                first = host < 0
                host = self.add(0, launched.host_s, NEUTRAL_KIND, stage, HOST, task.micro_batch)
                if launched.after_sync:
                    ended = [row for row in (kernel, communication) if row >= 0] or waits_for
                    self.edges += [(row, host, 0.0) for row in ended]
                elif first and task.pass_ != pass_ and (blocking or task.micro_batch == NONE):
                    self.edges += [(before, host, 0.0) for before in waits_for]
                row = self.device_row(operation, stage, task.micro_batch, block, host)
                self.edges.append((host, row, 0.0))
                if priced.communication is None:
                    if overlapped:
                        overlapped -= 1
                    elif communication >= 0:
                        self.edges.append((communication, row, 0.0))
                        communication = NONE
                    if kernel < 0:
                        entries.append(row)
                    kernel = row
                else:
                    if kernel >= 0:
                        self.edges.append((kernel, row, 0.0))
                    if communication < 0 and (not entries or kernel < 0):
                        entries.append(row)
                    communication = row
                    assert isinstance(priced.op, ir.Collective | ir.SendRecv)
                    overlapped = priced.op.overlaps
            ends = [row for row in (kernel, communication) if row >= 0]
            if task.copied_s:
                copied = self.add(0, task.copied_s, NEUTRAL_KIND, stage, HOST, task.micro_batch)
                self.edges += [(row, copied, 0.0) for row in ends]
                ends = [copied]
            if task.sent_s:
                step = 1 if task.direction == FORWARD else -1
                sent = self.boundary(stage, (stage + step) % self.stages)
                send = self.add(sent, task.sent_s, NEUTRAL_KIND, stage, PIPELINE, task.micro_batch)
                self.edges += [(row, send, 0.0) for row in ends]
                ends = [send]
            # What follows on this stage starts when all of this task is done.
            self.edges += [(before, entry, 0.0) for before in waits_for for entry in entries]
            waits_for = ends or waits_for
            pass_ = task.pass_
            self.entries[task.number] = entries or ends
            self.exits[task.number] = ends

    def device_operations(self, task: _Task) -> Iterator[tuple[_Launched, int]]:
        """Operations of a task and the number of the block that each is part of."""
        for block in task.blocks:
            number = len(self.block_names)
            self.block_names.append(block.name)
            self.block_passes.append(task.pass_)
            for launched in self.of_block(block):
                yield launched, number

    def device_row(
        self, operation: int, stage: int, micro_batch: int, block: int, host: int
    ) -> int:
        priced = self.operations[operation]
        assert priced is not None
        price = priced.communication
        if price is None:
            kind, stream = self.kinds.compute(1.0, kernel_seconds([priced])), COMPUTE
        else:
            kind, stream = self.wire_kind(price, priced.seconds), COMMUNICATION
        return self.add(operation, priced.seconds, kind, stage, stream, micro_batch, block, host)

    def wire_kind(self, price: CollectivePrice, seconds: float) -> int:
        nic_share = self.step.pricer.nic_share(price.nic_bytes, seconds)
        return self.kinds.communication(price.channels, price.wire_bytes_per_s, nic_share)

    def of_block(self, block: ir.Block) -> list[_Launched]:
        """A block's device operations in launch order."""
        if block.digest not in self.priced:
            pricer = self.step.pricer
            operations = pricer.operations(block)
            launches = pricer.launch_seconds(block, operations)
            first = len(self.operations)
            self.operations += operations
            self.priced[block.digest] = [
                _Launched(first + at, seconds, waits > 0 or pricer.launch_blocking)
                for at, (seconds, waits) in enumerate(zip(launches, block.waits, strict=True))
            ]
        return self.priced[block.digest]

    def boundary(self, stage: int, to: int) -> int:
        """The operation that sends from a stage to its neighbour."""
        number = crossed(stage, to)
        if number not in self.boundaries:
            passed = self.step.assembler.boundaries[number]
            price = passed.price
            self.boundaries[number] = len(self.operations)
            self.operations.append(
                PricedOp(passed.sent, passed.seconds, price.evidence, communication=price)
            )
        return self.boundaries[number]

    def contents(self, stage: int) -> Iterator[_Task]:
        """A stage's compute tasks in order."""
        structure, assembler = self.program.structure, self.step.assembler
        number = NONE
        for each in assembler.contents(self.program, stage):
            way, chunk, micro = each.way, each.chunk, each.micro_batch
            if each.begins:
                number = self.new_pass(PASS_NAMES[way], stage, chunk, micro)
            ends_s = (0.0, 0.0)
            if each.ends:
                whole = self.step.workload.stages[stage].chunks[chunk]
                copied_s = assembler.passes.copies_left_s(whole, way)
                ends_s = copied_s, assembler.sent_s(stage, chunk, way)
            yield _Task(each.task, each.blocks, number, micro, way, *ends_s)
        for task in structure.compute_tasks[stage][structure.pass_tasks[stage] :].tolist():
            block = self.program.blocks[task]
            number = self.new_pass(block.name, stage, NONE, NONE)
            yield _Task(task, [block], number, NONE, NONE, 0.0, 0.0)

    def new_pass(self, name: str, stage: int, chunk: int, micro_batch: int) -> int:
        self.passes.append((name, stage, chunk, micro_batch))
        return len(self.passes) - 1

    def unroll_others(self) -> None:
        """Data-parallel communication by operation, and the barrier of the step's end."""
        tasks = self.program.tasks
        for task in range(len(tasks.work)):
            if task in self.entries:
                continue
            stage = int(tasks.stream_rank[int(tasks.task_streams[task])])
            block = self.program.blocks.get(task)
            chain = []
            for launched in self.of_block(block) if block is not None else ():
                priced = self.operations[launched.operation]
                assert priced is not None
                assert priced.communication is not None
                kind = self.wire_kind(priced.communication, priced.seconds)
                number = launched.operation
                chain.append(self.add(number, priced.seconds, kind, stage, DATA_PARALLEL))
            if not chain:
                chain = [self.add(0, 0.0, NEUTRAL_KIND, stage, DATA_PARALLEL)]
                self.placeholders += chain
            self.chains[task] = chain
            self.entries[task], self.exits[task] = chain[:1], chain[-1:]

    def join_tasks(self) -> None:
        """The block-level dependencies, between the rows that stand for their tasks."""
        for before, after, lag in zip(
            *(column.tolist() for column in self.program.edges), strict=True
        ):
            exits, entries = self.exits[before], self.entries[after]
            self.edges += [(source, target, lag) for source in exits for target in entries]
            here, there = (self.rows[rows[0]][1] for rows in (exits, entries))
            if here == there or self.stages in (here, there):
                continue
            if self.rows[exits[0]][2] == PIPELINE:
                self.sends.append((exits[0], there))
            else:
                operation = self.boundary(here, there)
                self.overlapped.append(
                    _OverlappedTransfer(operation, here, there, exits, entries, lag)
                )

    def run(self) -> Timeline:
        operation, stage, stream, micro_batch, block, launched_by = (
            np.array(column, dtype=np.int64) for column in zip(*self.rows, strict=True)
        )
        # The barrier sits on a rank of its own, behind the last stage.
        ranks = int(stage.max()) + 1
        lane = stage * len(STREAMS) + stream
        by_lane = np.argsort(lane, kind="stable")
        bounds = np.searchsorted(lane[by_lane], np.arange(ranks * len(STREAMS) + 1))
        orders = [by_lane[low:high] for low, high in itertools.pairwise(bounds)]
        for rank in range(self.stages):
            orders[rank * len(STREAMS) + DATA_PARALLEL] = self.in_block_order(rank)
        before, after, lags = (np.array(column) for column in zip(*self.edges, strict=True))
        tasks = make_tasks(
            np.array(self.work),
            np.array(self.kind),
            (before, after, lags),
            orders,
            np.arange(ranks * len(STREAMS)) // len(STREAMS),
            self.kinds.slowdowns(self.step.job.gpu, self.step.pricer.factors.overlap_time),
        )
        times = run(tasks)
        columns = [operation, stage, stream, micro_batch, block, launched_by]
        return self.timeline(columns, times, before, after)

    def timeline(self, columns: list[Ints], times: Times, before: Ints, after: Ints) -> Timeline:
        """What was played, with the transfers beside it and without what only stands for tasks."""
        count, stage, stream = len(self.work), columns[1], columns[2]
        within = (stage[before] == stage[after]) | (stream[before] == PIPELINE)
        edges = [(before[within], after[within])]
        start_s, end_s = [times.start], [times.end]
        added = []
        for number, sent in enumerate(self.overlapped, start=count):
            began = float(times.end[sent.exits].max())
            start_s.append(np.array([began]))
            end_s.append(np.array([began + sent.lag_s]))
            added.append(
                (sent.operation, sent.stage, PIPELINE, self.rows[sent.exits[0]][3], NONE, NONE)
            )
            self.sends.append((number, sent.to_stage))
            for rows, others in ((sent.exits, [number]), ([number], sent.entries)):
                pairs = np.array(list(itertools.product(rows, others)), dtype=np.int64)
                edges.append((pairs[:, 0], pairs[:, 1]))
        if added:
            more = np.array(added, dtype=np.int64).T
            columns = [np.concatenate(pair) for pair in zip(columns, more, strict=True)]
        shown = columns[1] < self.stages
        shown[self.placeholders] = False
        renumbered = np.cumsum(shown) - 1
        before, after = (np.concatenate(side) for side in zip(*edges, strict=True))
        kept = shown[before] & shown[after]
        sends = np.array(self.sends, dtype=np.int64).reshape(-1, 2).T.copy()
        sends[0] = renumbered[sends[0]]
        launched_by = columns[5]
        names, *places = zip(*self.passes, strict=True)
        return Timeline(
            operations=tuple(self.operations),
            operation=columns[0][shown],
            stage=columns[1][shown],
            stream=columns[2][shown],
            micro_batch=columns[3][shown],
            block=columns[4][shown],
            launched_by=np.where(launched_by >= 0, renumbered[launched_by], NONE)[shown],
            start_s=np.concatenate(start_s)[shown],
            end_s=np.concatenate(end_s)[shown],
            block_name=tuple(self.block_names),
            block_pass=np.array(self.block_passes, dtype=np.int64),
            passes=Passes(names, *(np.array(column, dtype=np.int64) for column in places)),
            edges=(renumbered[before[kept]], renumbered[after[kept]]),
            sends=sends,
        )

    def in_block_order(self, stage: int) -> Ints:
        """The data-parallel stream's rows in the order block-level replay issues them."""
        program = self.program.tasks
        stream = np.flatnonzero(program.stream_rank == stage)[1]
        tasks = program.stream_tasks[program.order_start[stream] : program.order_start[stream + 1]]
        rows = [row for task in tasks.tolist() for row in self.chains[task]]
        return np.array(rows, dtype=np.int64)
