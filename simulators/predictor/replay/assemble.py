"""From priced passes to engine tasks: a compute and a data-parallel stream per stage.

Only unique ranks appear, one per pipeline stage: their data-, tensor- and context-parallel
peers run the same program at the same time. Pipeline transfers are part of the sender's task
when they block it (plain 1F1B and GPipe, as Megatron-LM issues them) and a lag on the
dependency when they run beside compute (interleaved).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.boundary import boundary_transfers
from trainscout.simulators.predictor.replay.engine import NO_STREAM, Floats, Ints, Tasks
from trainscout.simulators.predictor.replay.graph import NEUTRAL_KIND, Kinds, make_tasks
from trainscout.simulators.predictor.replay.passes import PassPrice, PassPricer, Segment
from trainscout.simulators.predictor.replay.priced import HOST, OPTIMIZER, PART_INDEX, PARTS
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.workload.data_parallel import (
    Transfer,
    bucket_parameters,
    gather_parameters,
    reduce_gradients,
)
from trainscout.simulators.predictor.workload.ir import Block
from trainscout.simulators.predictor.workload.program import Workload
from trainscout.simulators.predictor.workload.schedule import BACKWARD, FORWARD, stage_order

PP_PART = PART_INDEX["pp_communication"]
# Gathers and reductions of one communicator run one after another in NCCL: one stream.
COMPUTE_STREAM, DATA_PARALLEL_STREAM = 0, 1
STREAMS_PER_RANK = 2
# What is gathered or reduced for every micro-batch is double-buffered: the next layer's
# parameters arrive while one runs, and a reduction must end before the second one after it.
LAYERS_IN_FLIGHT = 2


@dataclass(frozen=True)
class Program:
    """Engine tasks of ``micro_batches`` micro-batches, and what is needed to read the times.

    ``compute_tasks[s]`` are the tasks of stage ``s``'s compute stream in order; the first
    ``pass_tasks[s]`` of them are passes. ``pass_start[s]`` maps pass ``i`` of the stage's
    order to its first task's place among them. ``pass_part_s[s]``, shape (2, chunks, parts),
    is the time of one pass by part, ``end_part_s[s]`` that of the tasks after the passes.
    ``communication`` marks data-parallel tasks, ``lag`` is the largest lag into each task, and
    ``blocks`` holds the content of the tasks that are not passes.
    """

    tasks: Tasks
    compute_tasks: tuple[Ints, ...]
    pass_tasks: tuple[int, ...]
    pass_start: tuple[Ints, ...]
    pass_part_s: tuple[Floats, ...]
    end_part_s: tuple[Floats, ...]
    communication: np.ndarray
    lag: Floats
    edges: tuple[Ints, Ints, Floats]
    blocks: dict[int, Block]


@dataclass(frozen=True)
class Sharing:
    """When parameters and gradients travel, for one job."""

    reduces: bool
    reduce_every: bool
    reduce_beside: bool
    gathers: bool
    gather_every: bool
    gather_beside: bool

    @classmethod
    def of(cls, job: Job) -> Sharing:
        recipe = job.recipe
        replicated = job.is_replicated
        stage = recipe.zero_stage
        return cls(
            reduces=replicated,
            reduce_every=replicated and stage >= 2,
            reduce_beside=replicated and (stage >= 2 or recipe.overlap_grad_reduce),
            gathers=replicated and stage >= 1,
            gather_every=replicated and stage == 3,
            gather_beside=replicated and (stage == 3 or recipe.overlap_param_gather),
        )


class Assembler:
    """Collects tasks, edges and stream orders, then freezes them."""

    def __init__(self, job: Job, workload: Workload, pricer: Pricer) -> None:
        self.job = job
        self.workload = workload
        self.pricer = pricer
        self.sharing = Sharing.of(job)
        self.passes = PassPricer(pricer, bucket_parameters(job))
        self.boundaries = boundary_transfers(job, workload, pricer.congestion, pricer.factors)
        self.boundary_s = np.array([each.seconds for each in self.boundaries])
        self.blocking_sends = job.recipe.vpp == 1 or not job.framework.overlap_p2p
        self.transfer = Transfer.of(job)

    def assemble(self, micro_batches: int) -> Program:
        """The step with ``micro_batches`` micro-batches per replica."""
        return _Build(self, micro_batches).program()

    def pass_price(self, stage: int, chunk: int, direction: int) -> PassPrice:
        """One pass with the transfer that blocks its sender, if any."""
        price = self.passes.whole(self.workload.stages[stage].chunks[chunk], direction)
        sent = self.sent_s(stage, chunk, direction)
        if not sent:
            return price
        parts = price.part_s.copy()
        parts[PP_PART] += sent
        total = price.seconds + sent
        share = price.compute_share * price.seconds / total
        return PassPrice(total, parts, share, price.kernel_s)

    def sent_s(self, stage: int, chunk: int, direction: int) -> float:
        """Blocking transfer after a pass: forward to the next stage, backward to the previous.

        An interleaved pipeline's last stage sends to the first one's next chunk.
        """
        recipe = self.job.recipe
        last = recipe.pp - 1
        if not self.blocking_sends or last == 0:
            return 0.0
        if direction == FORWARD:
            ends = stage == last and chunk == recipe.vpp - 1
            return 0.0 if ends else float(self.boundary_s[stage])
        ends = stage == 0 and chunk == 0
        # Before the first stage lies the wrap-around, the last entry.
        return 0.0 if ends else float(self.boundary_s[stage - 1])


class _Build:
    """One assembly; split from ``Assembler`` so that nothing leaks from one to the next."""

    def __init__(self, of: Assembler, micro_batches: int) -> None:
        self.of = of
        self.micro_batches = micro_batches
        self.stages = of.job.recipe.pp
        self.chunks = of.job.recipe.vpp
        self.work: list[Floats] = []
        self.kinds: list[Ints] = []
        self.count = 0
        self.edges: list[tuple[Ints, Ints, Floats]] = []
        self.single_edges: list[tuple[int, int]] = []
        self.orders: list[list[Ints]] = [[] for _ in range(self.stages * STREAMS_PER_RANK + 1)]
        # Data-parallel tasks by stage, each with its place in the stream's order.
        self.issued: list[list[tuple[float, int]]] = [[] for _ in range(self.stages)]
        self.kinds_of = Kinds()
        self.blocks: dict[int, Block] = {}
        shape = (self.stages, 2, self.chunks, micro_batches)
        self.first = np.empty(shape, dtype=np.int64)
        self.last = np.empty(shape, dtype=np.int64)

    def compute_kind(self, price: PassPrice) -> int:
        return self.kinds_of.compute(price.compute_share, price.kernel_s)

    def add(self, seconds: Floats, kinds: Ints) -> Ints:
        """Append tasks and return their numbers."""
        numbers = np.arange(self.count, self.count + len(seconds), dtype=np.int64)
        self.work.append(seconds)
        self.kinds.append(kinds)
        self.count += len(seconds)
        return numbers

    def add_one(self, seconds: float, kind: int = NEUTRAL_KIND) -> int:
        return int(self.add(np.array([seconds]), np.array([kind], dtype=np.int64))[0])

    def edge(self, before: Ints, after: Ints, lag: float | Floats = 0.0) -> None:
        lags = np.broadcast_to(np.asarray(lag, dtype=np.float64), before.shape)
        self.edges.append((before.ravel(), after.ravel(), lags.ravel()))

    def then(self, before: int, after: int) -> None:
        """One edge without lag."""
        self.single_edges.append((before, after))

    def stream(self, stage: int, which: int) -> list[Ints]:
        return self.orders[stage * STREAMS_PER_RANK + which]

    def program(self) -> Program:
        compute_tasks, pass_tasks, pass_starts, pass_parts, end_parts = [], [], [], [], []
        reduced: list[int | None] = []
        for stage in range(self.stages):
            starts, parts, last_reduce = self.stage_passes(stage)
            pass_starts.append(starts)
            pass_parts.append(parts)
            reduced.append(last_reduce)
            pass_tasks.append(sum(len(part) for part in self.stream(stage, COMPUTE_STREAM)))
        self.pipeline_edges()
        barrier = self.add_one(0.0)
        self.orders[-1].append(np.array([barrier]))
        for stage in range(self.stages):
            end_parts.append(self.step_end(stage, reduced[stage], barrier))
            compute_tasks.append(np.concatenate(self.stream(stage, COMPUTE_STREAM)))
        communication = np.zeros(self.count, dtype=np.bool_)
        for stage, issued in enumerate(self.issued):
            in_order = [task for _, task in sorted(issued, key=lambda entry: entry[0])]
            self.stream(stage, DATA_PARALLEL_STREAM).append(np.array(in_order, dtype=np.int64))
            communication[in_order] = True
        edges = self.all_edges()
        tasks, lag = self.freeze(edges)
        return Program(
            tasks=tasks,
            compute_tasks=tuple(compute_tasks),
            pass_tasks=tuple(pass_tasks),
            pass_start=tuple(pass_starts),
            pass_part_s=tuple(pass_parts),
            end_part_s=tuple(end_parts),
            communication=communication,
            lag=lag,
            edges=edges,
            blocks=self.blocks,
        )

    def stage_passes(self, stage: int) -> tuple[Ints, Floats, int | None]:
        """Add one stage's passes; returns pass starts, part seconds and the last reduction."""
        of, sharing, m = self.of, self.of.sharing, self.micro_batches
        chunks = of.workload.stages[stage].chunks
        order = stage_order(of.job.schedule, stage, self.stages, self.chunks, m)
        direction, chunk, micro = order
        prices = [
            [of.pass_price(stage, each, d) for each in range(self.chunks)]
            for d in (FORWARD, BACKWARD)
        ]
        seconds = np.array([[price.seconds for price in row] for row in prices])
        kinds = np.array([[self.compute_kind(price) for price in row] for row in prices])
        parts = np.array([[price.part_s for price in row] for row in prices])

        gathered = np.zeros(order.shape[1], dtype=np.bool_)
        reduce_cut = np.zeros(order.shape[1], dtype=np.bool_)
        if sharing.gather_beside:
            first_only = (direction == FORWARD) & (micro == 0)
            gathered = np.ones_like(gathered) if sharing.gather_every else first_only
        if sharing.reduce_beside:
            last_only = (direction == BACKWARD) & (micro == m - 1)
            reduce_cut = (direction == BACKWARD) if sharing.reduce_every else last_only
        cut = gathered | reduce_cut
        pieces = np.ones(order.shape[1], dtype=np.int64)
        if cut.any():
            counts = np.array(
                [[len(of.passes.segments(c, d)) for c in chunks] for d in (FORWARD, BACKWARD)]
            )
            pieces[cut] = counts[direction[cut], chunk[cut]]
        starts = np.cumsum(pieces) - pieces
        work = np.repeat(seconds[direction, chunk], pieces)
        kind = np.repeat(kinds[direction, chunk], pieces)
        numbers = self.add(work, kind)
        self.stream(stage, COMPUTE_STREAM).append(numbers)
        self.first[stage, direction, chunk, micro] = numbers[starts]
        self.last[stage, direction, chunk, micro] = numbers[starts + pieces - 1]
        last_reduce: int | None = None
        for index in np.flatnonzero(cut):
            own = numbers[starts[index] : starts[index] + pieces[index]]
            way = int(direction[index])
            segments = of.passes.segments(chunks[chunk[index]], way)
            self.fill_segments(own, segments, work, kind, numbers[0])
            work[own[-1] - numbers[0]] += of.sent_s(stage, int(chunk[index]), way)
            if gathered[index]:
                self.gather_beside(stage, own, segments)
            if reduce_cut[index]:
                last_reduce = self.reduce_beside(stage, own, segments) or last_reduce
        return starts, parts, last_reduce

    def fill_segments(
        self,
        own: Ints,
        segments: tuple[Segment, ...],
        work: Floats,
        kind: Ints,
        base: int,
    ) -> None:
        for number, segment in zip(own, segments, strict=True):
            work[number - base] = segment.price.seconds
            kind[number - base] = self.compute_kind(segment.price)

    def gather_beside(self, stage: int, own: Ints, segments: tuple[Segment, ...]) -> None:
        """All-gathers that must arrive before the segments they belong to.

        Megatron gathers all buckets as fast as the network takes them; FSDP keeps few in
        flight.
        """
        for number, segment in _with_parameters(own, segments):
            block = gather_parameters(segment.parameters, self.of.transfer)
            if not block.ops:
                continue
            # Issued when the compute it may not run ahead of has been launched.
            task = self.communicate(stage, number - LAYERS_IN_FLIGHT + 0.75, block)
            self.then(task, int(number))
            if self.of.sharing.gather_every:
                ahead = number - LAYERS_IN_FLIGHT
                if ahead >= self.stream(stage, COMPUTE_STREAM)[0][0]:
                    self.then(int(ahead), task)

    def reduce_beside(self, stage: int, own: Ints, segments: tuple[Segment, ...]) -> int | None:
        task = None
        for number, segment in _with_parameters(own, segments):
            block = reduce_gradients(segment.parameters, self.of.transfer)
            if not block.ops:
                continue
            task = self.communicate(stage, number + 0.5, block)
            self.then(int(number), task)
            if self.of.sharing.reduce_every:
                behind = number + LAYERS_IN_FLIGHT
                if behind <= self.stream(stage, COMPUTE_STREAM)[0][-1]:
                    self.then(task, int(behind))
        return task

    def communicate(self, stage: int, place: float, block: Block) -> int:
        """A data-parallel task at a place between the numbers of the stage's compute tasks."""
        priced = self.of.pricer.block(block)
        kind = self.kinds_of.communication(priced.channels, priced.wire_bytes_per_s)
        task = self.add_one(priced.seconds, kind)
        self.issued[stage].append((place, task))
        self.blocks[task] = block
        return task

    def pipeline_edges(self) -> None:
        """Forward and backward dependencies between stages, chunk by chunk."""
        of, last = self.of, self.stages - 1
        lags = np.zeros(self.stages) if of.blocking_sends else of.boundary_s
        for stage in range(self.stages):
            if stage > 0:
                self.edge(
                    self.last[stage - 1, FORWARD], self.first[stage, FORWARD], lags[stage - 1]
                )
            if stage < last:
                self.edge(self.last[stage + 1, BACKWARD], self.first[stage, BACKWARD], lags[stage])
        if last and self.chunks > 1:
            self.edge(self.last[last, FORWARD, :-1], self.first[0, FORWARD, 1:], lags[last])
            self.edge(self.last[0, BACKWARD, 1:], self.first[last, BACKWARD, :-1], lags[last])

    def step_end(self, stage: int, last_reduce: int | None, barrier: int) -> Floats:
        """Reduction, finish, optimizer and gather that follow the passes; their part seconds.

        Clipping needs the norm over all stages, hence the barrier before the optimizer.
        """
        of, sharing = self.of, self.of.sharing
        program = of.workload.stages[stage]
        parts = np.zeros(len(PARTS))
        compute = self.stream(stage, COMPUTE_STREAM)

        def append(block: Block, part: int | None = None) -> int:
            priced = of.pricer.block(block)
            waits_s = max(0.0, priced.host_s - priced.seconds)
            task = self.add_one(priced.seconds + waits_s)
            compute.append(np.array([task]))
            parts[PART_INDEX[HOST]] += waits_s
            self.blocks[task] = block
            if part is None:
                parts[:] += priced.part_s
            else:
                parts[part] += priced.seconds
            return task

        if sharing.reduces and not sharing.reduce_beside:
            append(reduce_gradients(program.parameters, of.transfer))
        finish = append(program.finish)
        if last_reduce is not None:
            self.then(last_reduce, finish)
        self.then(finish, barrier)
        optimizer = append(program.optimizer, PART_INDEX[OPTIMIZER])
        self.then(barrier, optimizer)
        if sharing.gathers and not sharing.gather_beside:
            append(gather_parameters(program.parameters, of.transfer))
        return parts

    def all_edges(self) -> tuple[Ints, Ints, Floats]:
        single = np.array(self.single_edges, dtype=np.int64)
        self.edges.append((single[:, 0], single[:, 1], np.zeros(len(single))))
        before, after, lags = zip(*self.edges, strict=True)
        return np.concatenate(before), np.concatenate(after), np.concatenate(lags)

    def freeze(self, edges: tuple[Ints, Ints, Floats]) -> tuple[Tasks, Floats]:
        _, after, lags = edges
        largest = np.zeros(self.count)
        np.maximum.at(largest, after, lags)
        orders = [
            np.concatenate(order) if order else np.empty(0, dtype=np.int64)
            for order in self.orders
        ]
        tasks = make_tasks(
            np.concatenate(self.work),
            np.concatenate(self.kinds),
            edges,
            orders,
            # The barrier's stream belongs to no stage.
            np.minimum(np.arange(len(orders)) // STREAMS_PER_RANK, self.stages),
            self.kinds_of.slowdowns(self.of.job.gpu),
            self.side_streams(),
        )
        return tasks, largest

    def side_streams(self) -> Ints:
        """Data-parallel communication meets only its own stage's compute stream."""
        side = np.full(len(self.orders), NO_STREAM, dtype=np.int64)
        mains = np.arange(self.stages) * STREAMS_PER_RANK + COMPUTE_STREAM
        side[mains] = mains - COMPUTE_STREAM + DATA_PARALLEL_STREAM
        return side


def _with_parameters(own: Ints, segments: tuple[Segment, ...]) -> list[tuple[int, Segment]]:
    """A pass's segments that have something to gather and reduce, with their tasks."""
    pairs = zip(own.tolist(), segments, strict=True)
    return [(number, segment) for number, segment in pairs if segment.parameters.held.total]
