"""From priced passes to engine tasks: a compute and a data-parallel stream per stage.

Only unique ranks appear, one per pipeline stage: their data-, tensor- and context-parallel
peers run the same program at the same time. Pipeline transfers are part of the sender's task
when they block it (plain 1F1B and GPipe, as Megatron-LM issues them) and a lag on the
dependency when they run beside compute (interleaved, and where backward passes are split).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.schedules import SCHEDULES, crossed
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
from trainscout.simulators.predictor.workload.passes import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    KINDS,
    WEIGHT_GRADIENT,
)
from trainscout.simulators.predictor.workload.program import Workload
from trainscout.simulators.predictor.workload.schedule import stage_order

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
    order to its first task's place among them. ``pass_part_s[s]``, shape (parts,), is
    the time of a micro-batch's passes by part, ``end_part_s[s]`` that of the tasks after them.
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
    micro_batches: int


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
        split = SCHEDULES[job.schedule].splits_backward
        self.blocking_sends = not split and (job.recipe.vpp == 1 or not job.framework.overlap_p2p)
        self.transfer = Transfer.of(job)
        # Hidden states of a frozen model beside travel in the same message.
        frozen = job.reference
        beside = 0.0 if frozen is None else frozen.model.hidden_size / job.model.hidden_size
        self.forward_messages = 1 + beside

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
            return 0.0 if ends else float(self.boundary_s[stage]) * self.forward_messages
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
        self.schedule = SCHEDULES[of.job.schedule]
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
        shape = (self.stages, KINDS, self.chunks, micro_batches)
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
            micro_batches=self.micro_batches,
        )

    def stage_passes(self, stage: int) -> tuple[Ints, Floats, int | None]:
        """Add one stage's passes; returns pass starts, part seconds and the last reduction."""
        of, sharing, m = self.of, self.of.sharing, self.micro_batches
        chunks = of.workload.stages[stage].chunks
        order = stage_order(of.job.schedule, stage, self.stages, self.chunks, m)
        direction, chunk, micro = order
        ways = range(KINDS if self.schedule.splits_backward else BACKWARD + 1)
        prices = [[of.pass_price(stage, each, d) for each in range(self.chunks)] for d in ways]
        seconds = np.array([[price.seconds for price in row] for row in prices])
        kinds = np.array([[self.compute_kind(price) for price in row] for row in prices])
        each_part_s = np.array([[price.part_s for price in row] for row in prices])
        runs = np.bincount(direction * self.chunks + chunk, minlength=seconds.size) / m
        parts = (each_part_s * runs.reshape(*seconds.shape, 1)).sum(axis=(0, 1))

        gathered = np.zeros(order.shape[1], dtype=np.bool_)
        reduce_cut = np.zeros(order.shape[1], dtype=np.bool_)
        if sharing.gather_beside:
            first_only = _ends_of(direction == FORWARD, chunk, last=False)
            gathered = np.ones_like(gathered) if sharing.gather_every else first_only
        if sharing.reduce_beside:
            # What completes gradients: whole backward passes, and those of weights.
            backward = (direction == BACKWARD) | (direction == WEIGHT_GRADIENT)
            reduce_cut = backward if sharing.reduce_every else _ends_of(backward, chunk, last=True)
        cut = gathered | reduce_cut
        pieces = np.ones(order.shape[1], dtype=np.int64)
        if cut.any():
            counts = np.array([[len(of.passes.segments(c, d)) for c in chunks] for d in ways])
            pieces[cut] = counts[direction[cut], chunk[cut]]
        starts = np.cumsum(pieces) - pieces
        work = np.repeat(seconds[direction, chunk], pieces)
        kind = np.repeat(kinds[direction, chunk], pieces)
        numbers = self.add(work, kind)
        self.stream(stage, COMPUTE_STREAM).append(numbers)
        # The stage before waits for the gradient of an input, whole backward pass or half.
        way = np.where(direction == INPUT_GRADIENT, BACKWARD, direction)
        self.first[stage, way, chunk, micro] = numbers[starts]
        self.last[stage, way, chunk, micro] = numbers[starts + pieces - 1]
        last_reduce: int | None = None
        for index in np.flatnonzero(cut):
            own = numbers[starts[index] : starts[index] + pieces[index]]
            which = int(direction[index])
            segments = of.passes.segments(chunks[chunk[index]], which)
            self.fill_segments(own, segments, work, kind, numbers[0])
            work[own[-1] - numbers[0]] += of.sent_s(stage, int(chunk[index]), which)
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
        """Forward and backward dependencies between the places that micro-batches visit."""
        of, m = self.of, self.micro_batches
        routes = of.job.routes
        for number, route in enumerate(routes):
            micros = slice(number * m // len(routes), (number + 1) * m // len(routes))
            one, one_chunk = np.array(route[:-1], dtype=np.int64).reshape(-1, 2).T
            other, other_chunk = np.array(route[1:], dtype=np.int64).reshape(-1, 2).T
            lags = np.zeros((len(one), 1))
            if not of.blocking_sends:
                for hop, (here, there) in enumerate(
                    zip(one.tolist(), other.tolist(), strict=True)
                ):
                    lags[hop] = of.boundary_s[crossed(here, there)] if here != there else 0.0
            for way in (FORWARD, BACKWARD):
                before, after = (one, one_chunk), (other, other_chunk)
                if way == BACKWARD:
                    before, after = after, before
                self.edge(
                    self.last[before[0], way, before[1], micros],
                    self.first[after[0], way, after[1], micros],
                    lags * (of.forward_messages if way == FORWARD else 1),
                )

    def step_end(self, stage: int, last_reduce: int | None, barrier: int) -> Floats:
        """Reduction, finish, optimizer and gather that follow the passes; their part seconds.

        Clipping needs the norm over all stages, hence the barrier before the optimizer; where
        stages do not wait for each other, updates are taken back if it turns out too large.
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
        optimizer = append(program.optimizer, PART_INDEX[OPTIMIZER])
        if not self.schedule.unsynchronised:
            self.then(finish, barrier)
            self.then(barrier, optimizer)
        if sharing.gathers and not sharing.gather_beside:
            append(gather_parameters(program.parameters, of.transfer))
        return parts

    def all_edges(self) -> tuple[Ints, Ints, Floats]:
        single = np.array(self.single_edges, dtype=np.int64).reshape(-1, 2)
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


def _ends_of(passes: np.ndarray, chunk: Ints, *, last: bool) -> np.ndarray:
    """The first, or the last, of some passes of each chunk."""
    found = np.zeros_like(passes)
    places = np.flatnonzero(passes)
    if last:
        places = places[::-1]
    found[places[np.unique(chunk[places], return_index=True)[1]]] = True
    return found


def _with_parameters(own: Ints, segments: tuple[Segment, ...]) -> list[tuple[int, Segment]]:
    """A pass's segments that have something to gather and reduce, with their tasks."""
    pairs = zip(own.tolist(), segments, strict=True)
    return [(number, segment) for number, segment in pairs if segment.parameters.held.total]
