"""The tasks of a step without their seconds: which there are, in what order, and after what.

This depends on the schedule and on where passes are cut, and not on what anything takes: recipes
of one pipeline share it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.schedules import crossed, routes, schedule_kind
from trainscout.simulators.predictor.workload.schedules.passes import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    KINDS,
    WEIGHT_GRADIENT,
)
from trainscout.simulators.predictor.workload.schedules.schedule import stage_order
from trainscout.simulators.predictor.workload.weights.data_parallel import gathers_alone

from .engine import NO_STREAM, Ints, Tasks
from .graph import make_tasks

# Gathers and reductions of one communicator run one after another in NCCL: one stream.
COMPUTE_STREAM, DATA_PARALLEL_STREAM = 0, 1
STREAMS_PER_RANK = 2
# What is gathered or reduced for every micro-batch is double-buffered: the next layer's
# parameters arrive while one runs, and a reduction must end before the second one after it.
LAYERS_IN_FLIGHT = 2
_ALONE = 1
# What a segment of a pass exchanges.
GATHERS, REDUCES = 1, 2


@dataclass(frozen=True)
class Sharing:
    """When parameters and gradients travel, for one job.

    ``gather_every`` forward pass or not, and ``gather_again`` for backward passes; ``in_turn``:
    what was reduced, or is gathered again, leaves its buffer to what comes later. ``in_flight``:
    how many layers may be ahead of what runs, of them ``gathered`` forward and backward.
    """

    reduces: bool
    reduce_every: bool
    reduce_overlaps: bool
    gathers: bool
    gather_every: bool
    gather_again: bool
    gather_overlaps: bool
    in_turn: bool
    in_flight: int
    gathered: tuple[int, int]

    @classmethod
    def of(cls, job: Job) -> Sharing:
        recipe, replicated, framework = job.recipe, job.is_replicated, job.framework
        stage, whole = recipe.zero_stage, framework.sums_whole_grads
        alone = gathers_alone(job) or (stage >= 2 and framework.waits_for_reductions)
        units = replicated and job.gathers_units
        each = framework.reduces_each_pass and recipe.pp == 1 and recipe.overlap_grad_reduce
        # ``torch.distributed.pipelining`` has FSDP reduce after the last backward pass (stage.py:
        # ``run_post_backward``).
        last = recipe.pp > 1 and framework.pipeline_buffers == "preallocated"
        in_flight = _ALONE if alone else LAYERS_IN_FLIGHT
        lora = job.training.lora if framework.wraps_adapters else None
        after_last = lora is not None and "linear_fc2" in lora.targets
        behind = lora is not None or not framework.prefetches_backward
        return cls(
            reduces=replicated,
            reduce_every=replicated and (stage >= 2 or each) and not whole,
            reduce_overlaps=replicated and not last and (stage >= 2 or recipe.overlap_grad_reduce),
            gathers=replicated and stage >= 1,
            # Under ZeRO 2 FSDP reshards layers after a backward pass that reduces.
            gather_every=units and not (stage == 2 and whole),
            gather_again=units and stage == 3,
            gather_overlaps=units or (replicated and recipe.overlap_param_gather),
            # A backward pass ends when what it reduced has arrived (``_fsdp_param_group.py:
            # finalize_backward``).
            in_turn=replicated and (stage >= 2 or each),
            in_flight=in_flight,
            gathered=(_ALONE if after_last else in_flight, _ALONE if behind else in_flight),
        )

    def exchanges(self, way: int) -> int:
        """What segments of passes of a kind may exchange: ``GATHERS``, ``REDUCES``, both (their
        sum) or nothing."""
        gathers = self.gather_overlaps and (self.gather_again or way == FORWARD)
        # What completes gradients: whole backward passes, and those of weights.
        reduces = self.reduce_overlaps and way in (BACKWARD, WEIGHT_GRADIENT)
        return GATHERS * gathers + REDUCES * reduces

    @property
    def ends(self) -> tuple[bool, bool]:
        """Whether a step's end begins with a reduction, and ends with a gather."""
        return self.reduces and not self.reduce_overlaps, self.gathers and not self.gather_overlaps


@dataclass(frozen=True)
class Outline:
    """All that the tasks of a step depend on but for their seconds.

    ``cuts[s][way * chunks + chunk]`` has a byte for each segment of such a pass of stage ``s``:
    what it exchanges; none where passes are whole. Ways: as many kinds of passes as there are.
    """

    schedule: str
    stages: int
    chunks: int
    micro_batches: int
    sharing: Sharing
    cuts: tuple[tuple[bytes, ...], ...]


@dataclass(frozen=True, eq=False, repr=False)
class Structure:
    """Tasks, each with its *slot* in a table that says what it takes.

    The table has one stage after another: whole passes by kind and chunk, then for each that is
    cut its segments, their gathers and their reductions, then the step's end (a reduction, finish,
    optimizer, a gather); its last slot is the barrier's. A table of lags has those of the
    boundaries forward, then 0, then the same backward.

    ``tasks`` take no time. ``lag_slot`` are the slots of ``tasks.lags``, ``edge_lag_slot`` those
    of ``edges`` (tasks before, tasks after), ``task_lag_slot`` that of the largest lag into each
    task.

    ``compute_tasks[s]`` are the tasks of stage ``s``'s compute stream in order; the first
    ``pass_tasks[s]`` of them are passes. ``pass_start[s]`` maps pass ``i`` of the stage's
    order to its first task's place among them, ``pass_end[s]`` to its last task. ``runs[s]``: how
    often a micro-batch runs each kind of pass of each chunk. ``communication`` marks
    data-parallel tasks; ``others`` are neither passes nor the barrier.
    """

    tasks: Tasks
    slot: Ints
    lag_slot: Ints
    edges: tuple[Ints, Ints]
    edge_lag_slot: Ints
    task_lag_slot: Ints
    compute_tasks: tuple[Ints, ...]
    pass_tasks: tuple[int, ...]
    pass_start: tuple[Ints, ...]
    pass_end: tuple[Ints, ...]
    runs: tuple[tuple[float, ...], ...]
    communication: np.ndarray
    others: Ints

    @functools.cached_property
    def like_streams(self) -> tuple[tuple[Ints, Ints], ...]:
        """Stages whose compute streams have equally many tasks, and these, shape (stages,
        tasks)."""
        like: dict[int, list[int]] = {}
        for stage, tasks in enumerate(self.compute_tasks):
            like.setdefault(len(tasks), []).append(stage)
        return tuple(
            (np.array(stages), np.stack([self.compute_tasks[stage] for stage in stages]))
            for stages in like.values()
        )


def ways_of(schedule: str) -> int:
    """How many kinds of passes there are."""
    return KINDS if schedule_kind(schedule).splits_backward else BACKWARD + 1


@functools.lru_cache(maxsize=32)
def structure_of(outline: Outline) -> Structure:
    """The tasks of a step."""
    stages, chunks, micro_batches = outline.stages, outline.chunks, outline.micro_batches
    sharing, schedule = outline.sharing, schedule_kind(outline.schedule)
    shape = (stages, KINDS, chunks, micro_batches)
    first, last = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
    count = slots = 0
    slot: list[Ints] = []
    before: list[Ints] = []
    after: list[Ints] = []
    others: list[Ints] = []
    passes, pass_end, issued, end_slots = [], [], [], []
    for stage in range(stages):
        own = _Passes.of(outline, stage)
        numbers = count + np.arange(own.length)
        starts = numbers[own.starts]
        direction, chunk, micro = own.order
        # The stage before waits for the gradient of an input, whole backward pass or half.
        way = np.where(direction == INPUT_GRADIENT, BACKWARD, direction)
        first[stage, way, chunk, micro] = starts
        ends = np.append(starts[1:], count + own.length) - 1
        last[stage, way, chunk, micro] = ends
        before.append(count + own.before)
        after.append(count + own.after)
        slot.append(slots + own.slot)
        issued.append(count + own.issued)
        others.append(count + np.arange(own.length, len(own.slot)))
        passes.append((own, numbers))
        pass_end.append(ends)
        end_slots.append(slots + own.slots)
        count += len(own.slot)
        slots += own.slots + 2 + sum(sharing.ends)
    barrier = count
    slot.append(np.array([slots]))
    count += 1
    compute = []
    for (own, numbers), end_slot in zip(passes, end_slots, strict=True):
        behind = np.arange(2 + sum(sharing.ends))
        slot.append(end_slot + behind)
        others.append(count + behind)
        finish = count + sharing.ends[0]
        edges = [] if own.last_reduce is None else [(numbers[0] + own.last_reduce, finish)]
        # Clipping needs the norm over all stages, hence the barrier before the optimizer; where
        # stages do not wait for each other, updates are taken back if it turns out too large.
        if not schedule.unsynchronised:
            edges += [(finish, barrier), (barrier, finish + 1)]
        pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
        before.append(pairs[:, 0])
        after.append(pairs[:, 1])
        compute.append(np.concatenate((numbers, count + behind)))
        count += len(behind)
    sent, received, lag_slot = _pipeline_edges(outline, first, last)
    none = sum(map(len, before))
    edge_lag_slot = np.concatenate((lag_slot, np.full(none, stages)))
    edges_of = np.concatenate((sent, *before)), np.concatenate((received, *after))
    orders = [each for pair in zip(compute, issued, strict=True) for each in pair]
    task_lag_slot = np.full(count, stages)
    task_lag_slot[received] = lag_slot
    communication = np.zeros(count, dtype=np.bool_)
    communication[np.concatenate(issued)] = True
    side = np.full(len(orders) + 1, NO_STREAM, dtype=np.int64)
    mains = np.arange(stages) * STREAMS_PER_RANK + COMPUTE_STREAM
    # Data-parallel communication meets only its own stage's compute stream.
    side[mains] = mains - COMPUTE_STREAM + DATA_PARALLEL_STREAM
    tasks = make_tasks(
        np.zeros(count),
        np.zeros(count, dtype=np.int64),
        (*edges_of, np.zeros(len(edge_lag_slot))),
        [*orders, np.array([barrier])],
        # The barrier's stream belongs to no stage.
        np.minimum(np.arange(len(orders) + 1) // STREAMS_PER_RANK, stages),
        np.ones((1, 1)),
        side,
    )
    return Structure(
        tasks=tasks,
        slot=np.concatenate(slot),
        lag_slot=edge_lag_slot[np.argsort(edges_of[0], kind="stable")],
        edges=edges_of,
        edge_lag_slot=edge_lag_slot,
        task_lag_slot=task_lag_slot,
        compute_tasks=tuple(compute),
        pass_tasks=tuple(own.length for own, _ in passes),
        pass_start=tuple(own.starts for own, _ in passes),
        pass_end=tuple(pass_end),
        runs=tuple(own.runs for own, _ in passes),
        communication=communication,
        others=np.concatenate(others),
    )


def _pipeline_edges(outline: Outline, first: Ints, last: Ints) -> tuple[Ints, Ints, Ints]:
    """Forward and backward dependencies between the places that micro-batches visit: tasks
    before, tasks after, slots of lags. ``first`` and ``last`` are the tasks of passes by stage,
    kind, chunk and micro-batch."""
    stages, count = outline.stages, outline.micro_batches
    found: list[tuple[Ints, Ints, Ints]] = []
    visited = routes(outline.schedule, stages, outline.chunks)
    for number, route in enumerate(visited):
        micros = slice(number * count // len(visited), (number + 1) * count // len(visited))
        one, other = (
            np.array(ends, dtype=np.int64).reshape(-1, 2).T for ends in (route[:-1], route[1:])
        )
        lags = np.array(
            [
                crossed(here, there) if here != there else stages
                for here, there in zip(one[0].tolist(), other[0].tolist(), strict=True)
            ],
            dtype=np.int64,
        )
        for way in (FORWARD, BACKWARD):
            here, there = (one, other) if way == FORWARD else (other, one)
            before = last[here[0], way, here[1], micros]
            after = first[there[0], way, there[1], micros]
            # Backward lags lie behind those forward and 0.
            slots = np.where(lags < stages, lags + way * (stages + 1), stages)
            found.append((before, after, np.broadcast_to(slots[:, None], before.shape)))
    before, after, slots = (
        np.concatenate([each.ravel() for each in way]) for way in zip(*found, strict=True)
    )
    return before, after, slots


@dataclass(frozen=True, eq=False, repr=False)
class _Passes:
    """One stage's passes, and the communication beside them; tasks count from its first.

    ``length`` tasks of its compute stream, the first of each pass at ``starts``; then those of its
    data-parallel stream, in the order ``issued``.
    """

    order: Ints
    starts: Ints
    length: int
    slot: Ints
    slots: int
    issued: Ints
    before: Ints
    after: Ints
    last_reduce: int | None
    runs: tuple[float, ...]

    @classmethod
    def of(cls, outline: Outline, stage: int) -> _Passes:
        sharing, chunks = outline.sharing, outline.chunks
        cuts = outline.cuts[stage]
        order = stage_order(outline.schedule, stage, outline.stages, chunks, outline.micro_batches)
        direction, chunk, _ = order
        which = direction * chunks + chunk
        gathered = np.zeros(len(which), dtype=np.bool_)
        reduced = np.zeros(len(which), dtype=np.bool_)
        if sharing.gather_overlaps:
            forward = direction == FORWARD
            gathered = forward if sharing.gather_every else _ends_of(forward, chunk, last=False)
            gathered = gathered | ~forward if sharing.gather_again else gathered
        if sharing.reduce_overlaps:
            backward = (direction == BACKWARD) | (direction == WEIGHT_GRADIENT)
            reduced = backward if sharing.reduce_every else _ends_of(backward, chunk, last=True)
        cut = gathered | reduced
        segments = np.array([len(each) for each in cuts])
        pieces = np.where(cut, segments[which], 1)
        starts = np.cumsum(pieces) - pieces
        length = int(pieces.sum())
        # The slots of each cut pass: segments, gathers, reductions.
        sent = (
            [_exchanged(each, GATHERS) for each in cuts],
            [_exchanged(each, REDUCES) for each in cuts],
        )
        sizes = segments + [len(each) for each in sent[0]] + [len(each) for each in sent[1]]
        offset = len(cuts) + np.cumsum(sizes) - sizes
        within = np.arange(length) - np.repeat(starts, pieces)
        passed = np.repeat(which, pieces)
        slot = np.where(np.repeat(cut, pieces), offset[passed] + within, passed)
        at, reduces, slots, layers = [], [], [], []
        for index in np.flatnonzero(cut).tolist():
            way = which[index]
            place = offset[way] + segments[way]
            for kind, does in enumerate((gathered, reduced)):
                if does[index]:
                    own = sent[kind][way]
                    at.append(starts[index] + own)
                    reduces.append(np.full(len(own), kind == 1))
                    slots.append(place + np.arange(len(own)))
                    ahead = sharing.gathered[int(direction[index] != FORWARD)]
                    layers.append(np.full(len(own), ahead))
                place += len(sent[kind][way])
        passed_by, reduce = _joined(at, np.int64), _joined(reduces, np.bool_)
        tasks = length + np.arange(len(passed_by))
        # Megatron gathers all buckets as fast as the network takes them; FSDP keeps few in
        # flight: a gather is issued when the compute it may not run ahead of has been launched.
        ahead, behind = passed_by - _joined(layers, np.int64), passed_by + sharing.in_flight
        places = np.where(reduce, passed_by + 0.5, ahead + 0.75)
        pairs = np.array(
            [
                [np.where(reduce, passed_by, tasks), np.where(reduce, tasks, passed_by)],
                [np.where(reduce, tasks, ahead), np.where(reduce, behind, tasks)],
            ]
        )
        bounded = np.where(
            reduce, sharing.in_turn & (behind < length), sharing.gather_again & (ahead >= 0)
        )
        there = np.array([np.ones_like(bounded), bounded]).T
        before, after = pairs.transpose(1, 2, 0)[:, there]
        return cls(
            order=order,
            starts=starts,
            length=length,
            slot=np.concatenate((slot, _joined(slots, np.int64))),
            slots=int(len(cuts) + sizes.sum()),
            issued=tasks[np.argsort(places, kind="stable")],
            before=before,
            after=after,
            last_reduce=int(tasks[reduce][-1]) if reduce.any() else None,
            runs=tuple((np.bincount(which, minlength=len(cuts)) / outline.micro_batches).tolist()),
        )


def _exchanged(cut: bytes, what: int) -> Ints:
    """The segments that exchange this."""
    return np.flatnonzero(np.frombuffer(cut, dtype=np.uint8) & what)


def _joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)


def _ends_of(passes: np.ndarray, chunk: Ints, *, last: bool) -> np.ndarray:
    """The first, or the last, of some passes of each chunk."""
    found = np.zeros_like(passes)
    places = np.flatnonzero(passes)
    if last:
        places = places[::-1]
    found[places[np.unique(chunk[places], return_index=True)[1]]] = True
    return found
