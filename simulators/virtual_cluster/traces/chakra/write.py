"""Export: ranks of a job as Chakra execution traces, with the file of their communicators.

``DIR/NAME.<rank>.et`` and ``DIR/NAME.comm_groups.json``, as ASTRA-sim reads them: collectives name
their communicator in ``pg_name`` (a number; ``0`` is all ranks), ``comm_size`` is the bytes that a
rank puts in, times are microseconds. A rank's nodes are its operations, communications and CPU
work; memory, ranges and call sites are left out, and so are strides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.io.output import replacing_bytes, unwritable, write_output
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Streaming
from trainscout.simulators.predictor.workload.work import kernel_flops
from trainscout.simulators.virtual_cluster.traces.chakra.arguments import texts
from trainscout.simulators.virtual_cluster.traces.chakra.dependencies import Dependencies
from trainscout.simulators.virtual_cluster.traces.chakra.schema import (
    CollectiveCommType,
    NodeType,
    attribute,
    message_classes,
    write_message,
)
from trainscout.simulators.virtual_cluster.traces.collate import Collated, Family
from trainscout.simulators.virtual_cluster.traces.events import (
    Collective,
    HostGap,
    Op,
    Phase,
    PointToPoint,
    Trace,
)
from trainscout.simulators.virtual_cluster.traces.lowering import lower
from trainscout.simulators.virtual_cluster.traces.vocabulary import tensor_bytes, tensors

# The version that Chakra's own generators write.
SCHEMA_VERSION = "0.0.4"
ALL_RANKS = 0
HOST_NAME = "host"
MICROSECOND = 1e-6
MAX_TAG, TAGS_A_GROUP = 2**31, 2**16
GROUPS_SUFFIX = ".comm_groups.json"


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
        InputError: for ranks outside the job, a directory (named as ``option``) that cannot be
            written, or when the package ``protobuf`` is missing.
    """
    chosen = sorted(set(job.traces if ranks is None else ranks))
    for rank in chosen:
        if not 0 <= rank < job.world_size:
            raise InputError("ranks", rank, "is no rank of the job", f"0 to {job.world_size - 1}")
    message_classes()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(option, directory, error) from error
    groups = _Groups(job)
    paths = []
    for rank in chosen:
        path = directory / f"{name}.{rank}.et"
        _write_rank(option, path, job, rank, groups)
        paths.append(path)
    groups_path = directory / f"{name}{GROUPS_SUFFIX}"
    write_output(option, groups_path, json.dumps(groups.declared()) + "\n")
    return (*paths, groups_path)


class _Groups:
    """Numbers communicators from 1 as ranks come to them, the same for all members."""

    def __init__(self, job: Collated) -> None:
        self._job = job
        self._numbers: dict[tuple[Family, int], int] = {}
        self._members: dict[int, tuple[int, ...]] = {}

    def number(self, rank: int, name: str) -> int:
        """Of the communicator that the trace of ``rank``'s class calls ``name``."""
        members = self._job.group(rank, name)
        if len(members) == self._job.world_size:
            return ALL_RANKS
        # Groups of one family that begin with one rank are one.
        key = (self._job.group_names(rank)[name], members[0])
        number = self._numbers.setdefault(key, len(self._numbers) + 1)
        self._members[number] = members
        return number

    def declared(self) -> dict[str, list[int]]:
        """What the file of communicators says."""
        return {str(number): list(members) for number, members in sorted(self._members.items())}


def _write_rank(option: str, path: Path, job: Collated, rank: int, groups: _Groups) -> None:
    trace = job.traces[job.class_of_rank[rank]]
    names = job.group_names(rank)
    numbers = {name: groups.number(rank, name) for name in names}
    metadata = message_classes()["GlobalMetadata"](version=SCHEMA_VERSION)
    header = trace.header
    metadata.attr.extend(
        [
            attribute("world_size", "int64_val", header.world_size),
            attribute("rank", "int64_val", rank),
            attribute("local_world_size", "int64_val", header.local_world_size),
            attribute("gpu", "string_val", header.gpu),
            attribute("memory_bytes", "uint64_val", header.memory_bytes),
            *(
                attribute(f"pg_desc:{numbers[name]}", "string_val", family.description)
                for name, family in names.items()
            ),
        ]
    )
    try:
        with replacing_bytes(path) as file:
            write_message(file, metadata)
            for node in _Nodes(job, rank, trace, numbers).nodes():
                write_message(file, node)
    except OSError as error:
        raise unwritable(option, path, error) from error


class _Nodes:
    """Makes the nodes of one rank, numbered in the order the host issued them."""

    def __init__(self, job: Collated, rank: int, trace: Trace, numbers: dict[str, int]) -> None:
        self._job = job
        self._rank = rank
        self._trace = trace
        self._numbers = numbers
        self._classes = message_classes()
        self._count = 0

    def nodes(self) -> Iterator[Any]:
        dependencies = Dependencies()
        phase: Phase | None = None
        host_s = 0.0
        for event in self._trace.events:
            if isinstance(event, HostGap):
                host_s += event.cpu_s
            elif isinstance(event, Phase):
                phase = event
            elif not isinstance(event, Op | Collective | PointToPoint):
                dependencies.follow(event)
            else:
                # Chakra counts whole microseconds: shorter work is added up until it is one.
                micros = int(host_s / MICROSECOND)
                if micros:
                    host_s -= micros * MICROSECOND
                    yield self._host(micros, dependencies.host_work(self._count))
                node = self._launched(event, dependencies.launch(self._count, event))
                if phase is not None:
                    node.attr.append(attribute("phase", "string_val", phase.phase))
                    node.attr.append(attribute("step", "int64_val", phase.step))
                yield node

    def _made(self, name: str, kind: NodeType, waits: tuple[int, ...], on_host: bool) -> Any:
        node = self._classes["Node"](id=self._count, name=name, type=int(kind), data_deps=waits)
        node.attr.append(attribute("is_cpu_op", "bool_val", on_host))
        self._count += 1
        return node

    def _host(self, micros: int, waits: tuple[int, ...]) -> Any:
        node = self._made(HOST_NAME, NodeType.COMP_NODE, waits, on_host=True)
        node.duration_micros = micros
        return node

    def _launched(self, event: Op | Collective | PointToPoint, waits: tuple[int, ...]) -> Any:
        if isinstance(event, Op):
            node = self._operation(event, waits)
        elif isinstance(event, Collective):
            node = self._collective(event, waits)
        else:
            node = self._transfer(event, waits)
        node.attr.append(attribute("stream", "int64_val", event.stream))
        return node

    def _operation(self, op: Op, waits: tuple[int, ...]) -> Any:
        node = self._made(op.name, NodeType.COMP_NODE, waits, on_host=False)
        operations, moved_bytes = _work(op)
        node.attr.append(attribute("num_ops", "int64_val", operations))
        node.attr.append(attribute("tensor_size", "uint64_val", moved_bytes))
        for side, arguments in (("inputs", op.inputs), ("outputs", op.outputs)):
            values, shapes, types = texts(arguments)
            info = getattr(node, side)
            info.values, info.shapes, info.types = values, shapes, types
        return node

    def _collective(self, event: Collective, waits: tuple[int, ...]) -> Any:
        node = self._made(event.kind, NodeType.COMM_COLL_NODE, waits, on_host=False)
        kind = CollectiveCommType[event.kind.upper()]
        size = event.bytes_in
        if kind in (CollectiveCommType.BROADCAST, CollectiveCommType.SCATTER):
            # Whoever does not send puts nothing in.
            size = max(event.bytes_in, event.bytes_out)
        number = self._numbers[event.group]
        node.attr.extend(
            [
                attribute("comm_type", "int64_val", int(kind)),
                attribute("comm_size", "int64_val", size),
                attribute("pg_name", "string_val", str(number)),
                attribute("dtype", "string_val", event.dtype),
                attribute("bytes_in", "int64_val", event.bytes_in),
                attribute("bytes_out", "int64_val", event.bytes_out),
            ]
        )
        if event.root is not None:
            node.attr.append(attribute("root", "int64_val", self._moved(event.group, event.root)))
        for side in ("splits_in", "splits_out"):
            splits = getattr(event, side)
            if splits is not None:
                node.attr.append(attribute(side, "int64_list", splits))
        return node

    def _transfer(self, event: PointToPoint, waits: tuple[int, ...]) -> Any:
        kind = NodeType.COMM_SEND_NODE if event.kind == "send" else NodeType.COMM_RECV_NODE
        node = self._made(event.kind, kind, waits, on_host=False)
        peer = self._job.peer(self._rank, event)
        source, destination = (self._rank, peer) if event.kind == "send" else (peer, self._rank)
        number = self._numbers[event.group]
        # Tells transfers between two ranks apart; both sides count alike.
        tag = (number * TAGS_A_GROUP + event.sequence % TAGS_A_GROUP) % MAX_TAG
        node.attr.extend(
            [
                attribute("comm_src", "int32_val", source),
                attribute("comm_dst", "int32_val", destination),
                attribute("comm_tag", "int32_val", tag),
                attribute("comm_size", "int64_val", event.bytes),
                attribute("pg_name", "string_val", str(number)),
                attribute("dtype", "string_val", event.dtype),
            ]
        )
        if event.batch is not None:
            node.attr.append(attribute("batch", "int64_val", event.batch))
        return node

    def _moved(self, name: str, rank: int) -> int:
        """A rank of the class's communicator, as the member of ours in the same position."""
        first = self._job.class_of_rank[self._rank]
        position = self._job.group(first, name).index(rank)
        return self._job.group(self._rank, name)[position]


def _work(op: Op) -> tuple[int, int]:
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
