"""An operation timeline as Chakra execution traces: one file a rank, and one of communicators.

A node is a kernel or a communication with its duration as predicted; it waits for what it waits
for on the timeline. What the host does is left out, and of a boundary tensor that tensor-parallel
ranks send in shares the gather on arrival. A send and its receive name each other's rank and one
tag. Times are microseconds, rounded so that sums of consecutive nodes stay whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainscout.simulators.predictor.kernels.moved_bytes import moved_bytes
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.priced import KERNELS, PricedOp
from trainscout.simulators.predictor.replay.timeline import HOST, NONE, PIPELINE, Timeline
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.ranks import group_of, place_of
from trainscout.simulators.virtual_cluster.traces.chakra.schema import attribute
from trainscout.simulators.virtual_cluster.traces.chakra.write import (
    ALL_RANKS,
    MICROSECOND,
    Groups,
    RankNodes,
    collective,
    computation,
    in_order,
    place,
    transfer,
    write_ranks,
)
from trainscout.simulators.virtual_cluster.traces.events import Header

NAME = "trace"
_PHASES = ("forward", "backward", "optimizer")
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}


def write_recipe_chakra(
    option: str, directory: Path, job: Job, timeline: Timeline, ranks: Sequence[int]
) -> tuple[Path, ...]:
    """Write ``DIR/trace.<rank>.et`` for each of ``ranks`` of a valid job, and
    ``DIR/trace.comm_groups.json``; returns the files.

    Raises:
        InputError: naming ``option``, for a directory that cannot be written, or when the package
            ``protobuf`` is missing.
    """
    groups = Groups(job.world_size)
    stages: dict[int, _Stage] = {}

    def nodes_of(rank: int) -> RankNodes:
        stage = place_of(job, rank).stage
        if stage not in stages:
            stages[stage] = _Stage(timeline, stage)
        return _Nodes(job, timeline, rank, groups).of(stages[stage])

    return write_ranks(option, directory, NAME, map(nodes_of, ranks), groups)


@dataclass(frozen=True)
class _Step:
    """A row of one stage's part in the step, ``received`` where another stage sent it, and the
    steps, by their place, that it waits for."""

    row: int
    received: bool
    waits: tuple[int, ...]


class _Stage:
    """What every rank of one stage runs, in an order in which nothing waits for what follows."""

    def __init__(self, timeline: Timeline, stage: int) -> None:
        self._timeline = timeline
        self._stage = stage
        sent, to_stage = timeline.sends
        self._arriving = set(sent[to_stage == stage].tolist())
        self._to_stage: dict[int, int] = dict(zip(sent.tolist(), to_stage.tolist(), strict=True))
        self.steps = self._ordered()

    def _ordered(self) -> list[_Step]:
        timeline = self._timeline
        here = np.flatnonzero(timeline.stage == self._stage).tolist()
        before: dict[int, set[int]] = {row: set() for row in (*here, *self._arriving)}
        for early, late in zip(*(side.tolist() for side in timeline.edges), strict=True):
            if late in before and early in before:
                before[late].add(early)
        for row, previous in self._stream_order(here):
            before[row].add(previous)
        steps: list[_Step] = []
        place: dict[int, frozenset[int]] = {}
        for row in in_order(before, lambda row: float(timeline.start_s[row])):
            waits: frozenset[int] = frozenset().union(*(place[each] for each in before[row]))
            if self._is_shown(row):
                steps.append(_Step(row, row in self._arriving, tuple(sorted(waits))))
                waits = frozenset((len(steps) - 1,))
            # Who waits for what is left out waits for what that waits for.
            place[row] = waits
        return steps

    def _stream_order(self, here: list[int]) -> Iterator[tuple[int, int]]:
        """Rows and the one before on their stream; arriving ones by the stage they come from."""
        timeline = self._timeline
        lanes: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row in sorted(
            (*here, *self._arriving), key=lambda row: (float(timeline.start_s[row]), row)
        ):
            stream = int(timeline.stream[row])
            if stream == PIPELINE:
                # One queue for each peer and direction.
                lanes[NONE, self._peer_key(row)].append(row)
            elif stream != HOST:
                lanes[stream, 0].append(row)
        for rows in lanes.values():
            yield from zip(rows[1:], rows, strict=False)

    def _peer_key(self, row: int) -> int:
        if row in self._arriving:
            return -1 - int(self._timeline.stage[row])
        return self._to_stage[row]

    def _is_shown(self, row: int) -> bool:
        """Whether a row becomes a node: no launch, and no communication of a rank with itself."""
        priced = self._timeline.operations[self._timeline.operation[row]]
        if priced is None or self._timeline.stream[row] == HOST:
            return False
        return priced.communication is None or priced.communication.algorithm != "none"


class _Nodes:
    """Makes the nodes of one rank, numbered in the order of its stage's steps."""

    def __init__(self, job: Job, timeline: Timeline, rank: int, groups: Groups) -> None:
        self._timeline = timeline
        self._rank = rank
        self._groups = groups
        self._job = job
        self._to_stage = dict(zip(*(side.tolist() for side in timeline.sends), strict=True))
        self._transfers: dict[tuple[int, int], int] = defaultdict(int)
        self._described: dict[int, str] = {}
        self._exchanges = 0

    def of(self, stage: _Stage) -> RankNodes:
        """The nodes of a rank of ``stage``."""
        job = self._job
        # All of them, since they name the communicators that are written first.
        nodes = list(self._numbered(stage))
        memory_bytes, a_node = job.gpu.memory_bytes, job.cluster.gpus_per_node
        header = Header(job.world_size, self._rank, a_node, job.gpu.name, memory_bytes, (), {})
        return RankNodes(header, sorted(self._described.items()), nodes)

    def _numbered(self, stage: _Stage) -> Iterator[Any]:
        # Node numbers by place: an exchange with neighbours takes two.
        numbers: list[tuple[int, ...]] = []
        count = 0
        for step in stage.steps:
            waits = sorted(number for at in step.waits for number in numbers[at])
            made = list(self._made(step))
            for number, node in enumerate(made, start=count):
                place(node, number, waits, int(self._timeline.stream[step.row]))
                self._describe(node, step.row)
                yield node
            numbers.append(tuple(range(count, count + len(made))))
            count += len(made)

    def _describe(self, node: Any, row: int) -> None:
        timeline = self._timeline
        start, end = (
            round(float(at[row]) / MICROSECOND) for at in (timeline.start_s, timeline.end_s)
        )
        node.duration_micros = end - start
        micro_batch, block = int(timeline.micro_batch[row]), int(timeline.block[row])
        if micro_batch != NONE:
            node.attr.append(attribute("micro_batch", "int64_val", micro_batch))
        if block != NONE:
            name = timeline.passes.name[timeline.block_pass[block]]
            node.attr.append(
                attribute("phase", "string_val", name if name in _PHASES else "other")
            )
            node.attr.append(attribute("step", "int64_val", 0))

    def _made(self, step: _Step) -> Iterator[Any]:
        priced = self._timeline.operations[self._timeline.operation[step.row]]
        assert priced is not None
        if self._timeline.stream[step.row] == PIPELINE:
            yield self._boundary(step, priced.op)
        elif isinstance(priced.op, ir.Collective):
            yield self._collective(priced.op)
        elif isinstance(priced.op, ir.SendRecv):
            # To the next member of the ring, from the one before.
            members = group_of(self._job, priced.op.communicator, self._rank)
            at = members.index(self._rank)
            peers = members[(at + 1) % len(members)], members[at - 1]
            batch, self._exchanges = self._exchanges, self._exchanges + 1
            yield self._transfer(priced.op, self._rank, peers[0], batch)
            yield self._transfer(priced.op, peers[1], self._rank, batch)
        else:
            yield _kernel(priced)

    def _collective(self, op: ir.Collective) -> Any:
        group, members = self._group(op.communicator)
        share = -(-op.bytes // len(members))
        bytes_in = share if op.kind == "all_gather" else op.bytes
        bytes_out = share if op.kind == "reduce_scatter" else op.bytes
        dtype = _DTYPES.get(op.dtype, op.dtype)
        return collective(op.name, op.kind, group, dtype, bytes_in, bytes_out)

    def _boundary(self, step: _Step, op: object) -> Any:
        """One side of what a stage sends the next."""
        assert isinstance(op, ir.SendRecv)
        pipeline = group_of(self._job, "pp", self._rank)
        source, destination = int(self._timeline.stage[step.row]), self._to_stage[step.row]
        return self._transfer(op, pipeline[source], pipeline[destination])

    def _transfer(
        self, op: ir.SendRecv, source: int, destination: int, batch: int | None = None
    ) -> Any:
        sends = source == self._rank
        group, _ = self._group(op.communicator)
        sequence = self._transfers[source, destination]
        self._transfers[source, destination] += 1
        name = f"{op.name}_{'send' if sends else 'recv'}"
        dtype = _DTYPES.get(self._job.precision, "bfloat16")
        ends = source, destination
        return transfer(name, sends, ends, group, sequence, dtype, op.bytes, batch)

    def _group(self, communicator: str) -> tuple[int, tuple[int, ...]]:
        """Number and members of this rank's group of a communicator."""
        members = group_of(self._job, communicator, self._rank)
        number = self._groups.number((communicator, members), members)
        if number != ALL_RANKS:
            self._described[number] = communicator
        return number, members


def _kernel(priced: PricedOp) -> Any:
    op = priced.op
    if isinstance(op, ir.HostUpdate):
        return computation(op.name, max(op.host_bytes // 2, 1), op.host_bytes)
    assert isinstance(op, KERNELS)
    moved = moved_bytes(op)
    # Rooflines divide by the operations: memory-bound work counts one for two bytes.
    return computation(op.name, ir.kernel_flops(op) or max(moved // 2, 1), moved)
