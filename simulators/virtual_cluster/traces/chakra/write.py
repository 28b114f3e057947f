"""Export: Chakra execution traces, ``DIR/NAME.<rank>.et`` and ``DIR/NAME.comm_groups.json``.

As ASTRA-sim reads them: collectives name their communicator in ``pg_name`` (a number; ``0`` is all
ranks), ``comm_size`` is the bytes that a rank puts in, times are microseconds. Whoever has ranks
to write makes their nodes with ``computation``, ``collective`` and ``transfer``: traced ranks
here, the timelines of predictions in ``reports/timeline``. A traced rank's nodes are its
operations, communications and CPU work; memory, ranges and call sites are left out, and strides.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from math import prod
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.io import output
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Streaming, kernel_flops
from trainscout.simulators.virtual_cluster.traces import events
from trainscout.simulators.virtual_cluster.traces.collate.collated import Collated
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower
from trainscout.simulators.virtual_cluster.traces.rank_walk import Dependencies
from trainscout.simulators.virtual_cluster.traces.vocabulary import tensor_bytes, tensors

from .schema import CollectiveCommType, NodeType, attribute, message_classes, texts, write_message

# The version that Chakra's own generators write.
SCHEMA_VERSION = "0.0.4"
ALL_RANKS = 0
MICROSECOND = 1e-6
GROUPS_SUFFIX = ".comm_groups.json"
_MAX_TAG, _TAGS_A_GROUP = 2**31, 2**16


class Groups:
    """Numbers communicators from 1 as ranks come to them, the same for all members."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._numbers: dict[Hashable, int] = {}
        self._members: dict[int, tuple[int, ...]] = {}

    def number(self, key: Hashable, members: tuple[int, ...]) -> int:
        """Of the communicator ``key`` of these ranks."""
        if len(members) == self._world_size:
            return ALL_RANKS
        number = self._numbers.setdefault(key, len(self._numbers) + 1)
        self._members[number] = members
        return number

    def declared(self) -> dict[str, list[int]]:
        """What the file of communicators says."""
        return {str(number): list(members) for number, members in sorted(self._members.items())}


@dataclass(frozen=True)
class RankNodes:
    """One rank to write: whose and of what, its communicators as number and description, and its
    nodes, in an order in which none waits for what follows."""

    header: events.Header
    groups: Sequence[tuple[int, str]]
    nodes: Iterable[Any]


def in_order(waits: Mapping[int, Collection[int]], first: Callable[[int], float]) -> Iterator[int]:
    """Numbers after those they wait for; of those that could come next, the ``first`` does.

    Raises:
        CycleError: when one waits for itself.
    """
    sorter = TopologicalSorter(waits)
    sorter.prepare()
    ready: list[tuple[float, int]] = []
    while sorter.is_active():
        for number in sorter.get_ready():
            heapq.heappush(ready, (first(number), number))
        number = heapq.heappop(ready)[1]
        yield number
        sorter.done(number)


def write_ranks(
    option: str, directory: Path, name: str, ranks: Iterable[RankNodes], groups: Groups
) -> tuple[Path, ...]:
    """Write ranks, then the file of their communicators; returns the files.

    Raises:
        InputError: for a directory (named as ``option``) that cannot be written, or when the
            package ``protobuf`` is missing.
    """
    message_classes()
    output.make_folder(option, directory)
    paths = []
    for rank in ranks:
        path = directory / f"{name}.{rank.header.rank}.et"
        try:
            with output.replacing_bytes(path) as file:
                write_message(file, _metadata(rank))
                for node in rank.nodes:
                    write_message(file, node)
        except OSError as error:
            raise output.unwritable(option, path, error) from error
        paths.append(path)
    groups_path = directory / f"{name}{GROUPS_SUFFIX}"
    output.write_output(option, groups_path, json.dumps(groups.declared()) + "\n")
    return (*paths, groups_path)


def _metadata(rank: RankNodes) -> Any:
    metadata = message_classes()["GlobalMetadata"](version=SCHEMA_VERSION)
    header = rank.header
    metadata.attr.extend(
        [
            attribute("world_size", "int64_val", header.world_size),
            attribute("rank", "int64_val", header.rank),
            attribute("local_world_size", "int64_val", header.local_world_size),
            attribute("gpu", "string_val", header.gpu),
            attribute("memory_bytes", "uint64_val", header.memory_bytes),
            *(
                attribute(f"pg_desc:{number}", "string_val", description)
                for number, description in rank.groups
            ),
        ]
    )
    return metadata


def computation(name: str, operations: int, moved_bytes: int) -> Any:
    """A node of device work: arithmetic operations and bytes moved, as rooflines take them."""
    node = _node(name, NodeType.COMP_NODE)
    node.attr.append(attribute("num_ops", "int64_val", operations))
    node.attr.append(attribute("tensor_size", "uint64_val", moved_bytes))
    return node


def host_work(name: str, micros: int) -> Any:
    """A node of CPU time."""
    node = _node(name, NodeType.COMP_NODE, on_host=True)
    node.duration_micros = micros
    return node


def collective(name: str, kind: str, group: int, dtype: str, bytes_in: int, bytes_out: int) -> Any:
    """A node of one rank's part in a collective of the communicator numbered ``group``."""
    node = _node(name, NodeType.COMM_COLL_NODE)
    comm_type = CollectiveCommType[kind.upper()]
    size = bytes_in
    if comm_type in (CollectiveCommType.BROADCAST, CollectiveCommType.SCATTER):
        # Whoever does not send puts nothing in.
        size = max(bytes_in, bytes_out)
    node.attr.extend(
        [
            attribute("comm_type", "int64_val", int(comm_type)),
            attribute("comm_size", "int64_val", size),
            attribute("pg_name", "string_val", str(group)),
            attribute("dtype", "string_val", dtype),
            attribute("bytes_in", "int64_val", bytes_in),
            attribute("bytes_out", "int64_val", bytes_out),
        ]
    )
    return node


def transfer(
    name: str,
    sends: bool,
    ends: tuple[int, int],
    group: int,
    sequence: int,
    dtype: str,
    size_bytes: int,
    batch: int | None = None,
) -> Any:
    """A node of one side of what goes from the first of ``ends`` to the second; ``sequence``
    counts those, on both sides alike."""
    node = _node(name, NodeType.COMM_SEND_NODE if sends else NodeType.COMM_RECV_NODE)
    source, destination = ends
    tag = (group * _TAGS_A_GROUP + sequence % _TAGS_A_GROUP) % _MAX_TAG
    node.attr.extend(
        [
            attribute("comm_src", "int32_val", source),
            attribute("comm_dst", "int32_val", destination),
            attribute("comm_tag", "int32_val", tag),
            attribute("comm_size", "int64_val", size_bytes),
            attribute("pg_name", "string_val", str(group)),
            attribute("dtype", "string_val", dtype),
        ]
    )
    if batch is not None:
        node.attr.append(attribute("batch", "int64_val", batch))
    return node


def place(node: Any, number: int, waits: Iterable[int], stream: int | None = None) -> Any:
    """The same node, with its number, those of the nodes it waits for, and its stream."""
    node.id = number
    node.data_deps.extend(waits)
    if stream is not None:
        node.attr.append(attribute("stream", "int64_val", stream))
    return node


def _node(name: str, kind: NodeType, on_host: bool = False) -> Any:
    node = message_classes()["Node"](name=name, type=int(kind))
    node.attr.append(attribute("is_cpu_op", "bool_val", on_host))
    return node


HOST_NAME = "host"


def write_chakra(
    directory: Path,
    job: Collated,
    ranks: Iterable[int] | None = None,
    name: str = "trace",
    option: str = "chakra",
) -> tuple[Path, ...]:
    """Write ``ranks`` of a job (by default those that were traced) into ``directory``.

    Ranks that were not traced get the nodes of the rank that stands for them, with their own
    communicators and peers. Returns the files: the ranks', then that of the communicators.

    Raises:
        InputError: for ranks outside the job, and as ``write_ranks``.
    """
    chosen = sorted(set(job.traces if ranks is None else ranks))
    for rank in chosen:
        if not 0 <= rank < job.world_size:
            raise InputError("ranks", rank, "is no rank of the job", f"0 to {job.world_size - 1}")
    groups = Groups(job.world_size)
    return write_ranks(
        option, directory, name, (_rank(job, rank, groups) for rank in chosen), groups
    )


def _rank(job: Collated, rank: int, groups: Groups) -> RankNodes:
    families = job.group_names(rank)
    numbers = {}
    for name, family in families.items():
        members = job.group(rank, name)
        # Groups of one family that begin with one rank are one.
        numbers[name] = groups.number((family, members[0]), members)
    trace = job.traces[job.class_of_rank[rank]]
    described = [(numbers[name], family.description) for name, family in families.items()]
    nodes = _Nodes(job, rank, numbers).nodes(trace.events)
    return RankNodes(replace(trace.header, rank=rank), described, nodes)


class _Nodes:
    """Makes the nodes of one rank, numbered in the order the host issued them."""

    def __init__(self, job: Collated, rank: int, numbers: dict[str, int]) -> None:
        self._job = job
        self._rank = rank
        self._numbers = numbers

    def nodes(self, trace_events: Iterable[events.Event]) -> Iterator[Any]:
        dependencies = Dependencies(self._rank)
        phase: events.Phase | None = None
        host_s, count = 0.0, 0
        for event in trace_events:
            if isinstance(event, events.HostGap):
                host_s += event.cpu_s
            elif isinstance(event, events.Phase):
                phase = event
            elif not isinstance(event, events.Op | events.Collective | events.PointToPoint):
                dependencies.follow(event)
            else:
                # Chakra counts whole microseconds: shorter work is added up until it is one.
                micros = int(host_s / MICROSECOND)
                if micros:
                    host_s -= micros * MICROSECOND
                    host = host_work(HOST_NAME, micros)
                    yield place(host, count, dependencies.host_work(count))
                    count += 1
                waits = dependencies.launch(count, event)
                node = place(self._launched(event), count, waits, event.stream)
                count += 1
                if phase is not None:
                    node.attr.append(attribute("phase", "string_val", phase.phase))
                    node.attr.append(attribute("step", "int64_val", phase.step))
                yield node

    def _launched(self, event: events.Op | events.Collective | events.PointToPoint) -> Any:
        if isinstance(event, events.Op):
            return _operation(event)
        if isinstance(event, events.Collective):
            return self._collective(event)
        return self._transfer(event)

    def _collective(self, event: events.Collective) -> Any:
        group = self._numbers[event.group]
        sizes = event.bytes_in, event.bytes_out
        node = collective(event.kind, event.kind, group, event.dtype, *sizes)
        if event.root is not None:
            node.attr.append(attribute("root", "int64_val", self._moved(event.group, event.root)))
        for side in ("splits_in", "splits_out"):
            splits = getattr(event, side)
            if splits is not None:
                node.attr.append(attribute(side, "int64_list", splits))
        return node

    def _transfer(self, event: events.PointToPoint) -> Any:
        sends, peer = event.kind == "send", self._job.peer(self._rank, event)
        ends = (self._rank, peer) if sends else (peer, self._rank)
        group = self._numbers[event.group]
        return transfer(
            event.kind, sends, ends, group, event.sequence, event.dtype, event.bytes, event.batch
        )

    def _moved(self, name: str, rank: int) -> int:
        """A rank of the class's communicator, as the member of ours in the same position."""
        first = self._job.class_of_rank[self._rank]
        position = self._job.group(first, name).index(rank)
        return self._job.group(self._rank, name)[position]


def _operation(op: events.Op) -> Any:
    node = computation(op.name, *_work(op))
    for side, arguments in (("inputs", op.inputs), ("outputs", op.outputs)):
        values, shapes, types = texts(arguments)
        info = getattr(node, side)
        info.values, info.shapes, info.types = values, shapes, types
    return node


def _work(op: events.Op) -> tuple[int, int]:
    """Arithmetic operations and bytes moved, as rooflines take them.

    Memory-bound work counts one operation for each element it writes: of no consequence where
    bytes decide, but rooflines divide by it.
    """
    kernels = lower(op).kernels
    operations = sum(kernel_flops(kernel) for kernel in kernels)
    if kernels and all(isinstance(kernel, Streaming) for kernel in kernels):
        moved_bytes = sum(kernel.bytes for kernel in kernels if isinstance(kernel, Streaming))
    else:
        moved_bytes = sum(map(tensor_bytes, (*tensors(op.inputs), *op.outputs)))
    written = sum(prod(tensor.shape) for tensor in op.outputs)
    return max(operations, written, 1), moved_bytes
