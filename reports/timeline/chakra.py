"""An operation timeline as Chakra execution traces: one file a rank, and one of communicators.

A node is a kernel or a communication with its duration as predicted; it waits for what it waits
for on the timeline. What the host does is left out, and of a boundary tensor that tensor-parallel
ranks send in shares the gather on arrival. A send and its receive name each other's rank and one
tag. Times are microseconds, rounded so that sums of consecutive nodes stay whole.
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainscout.simulators.predictor.io.output import replacing_bytes, unwritable, write_output
from trainscout.simulators.predictor.kernels.moved_bytes import moved_bytes
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.prices import KERNELS, PricedOp
from trainscout.simulators.predictor.replay.timeline import HOST, NONE, PIPELINE, Timeline
from trainscout.simulators.predictor.workload.ir import Collective, SendRecv
from trainscout.simulators.predictor.workload.ranks import group_of, place_of
from trainscout.simulators.predictor.workload.work import kernel_flops
from trainscout.simulators.virtual_cluster.traces.chakra.schema import (
    CollectiveCommType,
    NodeType,
    attribute,
    message_classes,
    write_message,
)
from trainscout.simulators.virtual_cluster.traces.chakra.write import (
    ALL_RANKS,
    GROUPS_SUFFIX,
    MAX_TAG,
    MICROSECOND,
    SCHEMA_VERSION,
    TAGS_A_GROUP,
)

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
    message_classes()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(option, directory, error) from error
    groups = _Groups(job)
    stages: dict[int, _Stage] = {}
    paths = []
    for rank in ranks:
        stage = place_of(job, rank).stage
        if stage not in stages:
            stages[stage] = _Stage(timeline, stage)
        path = directory / f"{NAME}.{rank}.et"
        try:
            with replacing_bytes(path) as file:
                nodes = list(_Nodes(job, timeline, rank, groups).nodes(stages[stage]))
                write_message(file, _metadata(job, rank, groups))
                for node in nodes:
                    write_message(file, node)
        except OSError as error:
            raise unwritable(option, path, error) from error
        paths.append(path)
    groups_path = directory / f"{NAME}{GROUPS_SUFFIX}"
    write_output(option, groups_path, json.dumps(groups.declared()) + "\n")
    return (*paths, groups_path)


class _Groups:
    """Numbers communicators from 1 as ranks come to them, the same for all members."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._numbers: dict[tuple[str, tuple[int, ...]], int] = {}

    def of(self, communicator: str, rank: int) -> tuple[int, tuple[int, ...]]:
        """Number and members of the group of ``communicator`` that ``rank`` is in."""
        members = group_of(self._job, communicator, rank)
        if len(members) == self._job.world_size:
            return ALL_RANKS, members
        key = (communicator, members)
        return self._numbers.setdefault(key, len(self._numbers) + 1), members

    def descriptions(self, rank: int) -> Iterator[tuple[int, str]]:
        for (communicator, members), number in self._numbers.items():
            if rank in members:
                yield number, communicator

    def declared(self) -> dict[str, list[int]]:
        """What the file of communicators says."""
        return {str(number): list(members) for (_, members), number in self._numbers.items()}


def _metadata(job: Job, rank: int, groups: _Groups) -> Any:
    metadata = message_classes()["GlobalMetadata"](version=SCHEMA_VERSION)
    metadata.attr.extend(
        [
            attribute("world_size", "int64_val", job.world_size),
            attribute("rank", "int64_val", rank),
            attribute("local_world_size", "int64_val", job.cluster.gpus_per_node),
            attribute("gpu", "string_val", job.gpu.name),
            attribute("memory_bytes", "uint64_val", job.gpu.memory_bytes),
            *(
                attribute(f"pg_desc:{number}", "string_val", description)
                for number, description in groups.descriptions(rank)
            ),
        ]
    )
    return metadata


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
        waiting = {row: len(earlier) for row, earlier in before.items()}
        after: dict[int, list[int]] = defaultdict(list)
        for row, earlier in before.items():
            for each in earlier:
                after[each].append(row)
        start_s = timeline.start_s
        ready = [(float(start_s[row]), row) for row, count in waiting.items() if not count]
        heapq.heapify(ready)
        steps: list[_Step] = []
        place: dict[int, frozenset[int]] = {}
        while ready:
            _, row = heapq.heappop(ready)
            waits: frozenset[int] = frozenset().union(*(place[each] for each in before[row]))
            if self._is_shown(row):
                steps.append(_Step(row, row in self._arriving, tuple(sorted(waits))))
                waits = frozenset((len(steps) - 1,))
            # Who waits for what is left out waits for what that waits for.
            place[row] = waits
            for each in after[row]:
                waiting[each] -= 1
                if not waiting[each]:
                    heapq.heappush(ready, (float(start_s[each]), each))
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

    def __init__(self, job: Job, timeline: Timeline, rank: int, groups: _Groups) -> None:
        self._timeline = timeline
        self._rank = rank
        self._groups = groups
        self._job = job
        self._classes = message_classes()
        self._to_stage = dict(zip(*(side.tolist() for side in timeline.sends), strict=True))
        self._transfers: dict[tuple[int, int], int] = defaultdict(int)
        self._exchanges = 0

    def nodes(self, stage: _Stage) -> Iterator[Any]:
        timeline = self._timeline
        # Node numbers by place: an exchange with neighbours takes two.
        numbers: list[tuple[int, ...]] = []
        count = 0
        for step in stage.steps:
            waits = sorted(number for place in step.waits for number in numbers[place])
            made = list(self._made(step))
            for number, node in enumerate(made, start=count):
                node.id = number
                node.data_deps.extend(waits)
                node.attr.append(attribute("is_cpu_op", "bool_val", False))
                node.attr.append(attribute("stream", "int64_val", int(timeline.stream[step.row])))
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
            yield self._boundary(step)
        elif isinstance(priced.op, Collective):
            yield self._collective(priced.op)
        elif isinstance(priced.op, SendRecv):
            # To the next member of the ring, from the one before.
            _, members = self._groups.of(priced.op.communicator, self._rank)
            at = members.index(self._rank)
            peers = members[(at + 1) % len(members)], members[at - 1]
            batch, self._exchanges = self._exchanges, self._exchanges + 1
            yield self._transfer(priced.op, self._rank, peers[0], batch)
            yield self._transfer(priced.op, peers[1], self._rank, batch)
        else:
            yield self._kernel(priced)

    def _kernel(self, priced: PricedOp) -> Any:
        op = priced.op
        assert isinstance(op, KERNELS)
        moved = moved_bytes(op)
        node = self._classes["Node"](name=op.name, type=int(NodeType.COMP_NODE))
        # Rooflines divide by the operations: memory-bound work counts one for two bytes.
        node.attr.append(attribute("num_ops", "int64_val", kernel_flops(op) or max(moved // 2, 1)))
        node.attr.append(attribute("tensor_size", "uint64_val", moved))
        return node

    def _collective(self, op: Collective) -> Any:
        number, members = self._groups.of(op.communicator, self._rank)
        share = -(-op.bytes // len(members))
        bytes_in = share if op.kind == "all_gather" else op.bytes
        bytes_out = share if op.kind == "reduce_scatter" else op.bytes
        node = self._classes["Node"](name=op.name, type=int(NodeType.COMM_COLL_NODE))
        node.attr.extend(
            [
                attribute("comm_type", "int64_val", int(CollectiveCommType[op.kind.upper()])),
                attribute("comm_size", "int64_val", bytes_in),
                attribute("pg_name", "string_val", str(number)),
                attribute("dtype", "string_val", _DTYPES.get(op.dtype, op.dtype)),
                attribute("bytes_in", "int64_val", bytes_in),
                attribute("bytes_out", "int64_val", bytes_out),
            ]
        )
        return node

    def _boundary(self, step: _Step) -> Any:
        """One side of what a stage sends the next."""
        timeline = self._timeline
        priced = timeline.operations[timeline.operation[step.row]]
        assert priced is not None
        assert isinstance(priced.op, SendRecv)
        _, pipeline = self._groups.of("pp", self._rank)
        source, destination = int(timeline.stage[step.row]), self._to_stage[step.row]
        return self._transfer(priced.op, pipeline[source], pipeline[destination])

    def _transfer(self, op: SendRecv, source: int, destination: int, batch: int = NONE) -> Any:
        sends = source == self._rank
        kind = NodeType.COMM_SEND_NODE if sends else NodeType.COMM_RECV_NODE
        number, _ = self._groups.of(op.communicator, self._rank)
        # Tells transfers between two ranks apart; both sides count alike.
        sequence = self._transfers[source, destination]
        self._transfers[source, destination] += 1
        tag = (number * TAGS_A_GROUP + sequence % TAGS_A_GROUP) % MAX_TAG
        node = self._classes["Node"](
            name=f"{op.name}_{'send' if sends else 'recv'}", type=int(kind)
        )
        node.attr.extend(
            [
                attribute("comm_src", "int32_val", source),
                attribute("comm_dst", "int32_val", destination),
                attribute("comm_tag", "int32_val", tag),
                attribute("comm_size", "int64_val", op.bytes),
                attribute("pg_name", "string_val", str(number)),
                attribute("dtype", "string_val", _DTYPES.get(self._job.precision, "bfloat16")),
            ]
        )
        if batch != NONE:
            node.attr.append(attribute("batch", "int64_val", batch))
        return node
