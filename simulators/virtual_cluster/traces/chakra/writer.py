"""Chakra execution traces as files: ``DIR/NAME.<rank>.et`` and ``DIR/NAME.comm_groups.json``.

As ASTRA-sim reads them: collectives name their communicator in ``pg_name`` (a number; ``0`` is all
ranks), ``comm_size`` is the bytes that a rank puts in, times are microseconds. Whoever has ranks
to write makes their nodes with ``computation``, ``collective`` and ``transfer``: traced ranks in
``write``, the timelines of predictions in ``reports/timeline``.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.io.output import (
    make_folder,
    replacing_bytes,
    unwritable,
    write_output,
)
from trainscout.simulators.virtual_cluster.traces.chakra.schema import (
    CollectiveCommType,
    NodeType,
    attribute,
    message_classes,
    write_message,
)
from trainscout.simulators.virtual_cluster.traces.events import Header

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

    header: Header
    groups: Sequence[tuple[int, str]]
    nodes: Iterable[Any]


def write_ranks(
    option: str, directory: Path, name: str, ranks: Iterable[RankNodes], groups: Groups
) -> tuple[Path, ...]:
    """Write ranks, then the file of their communicators; returns the files.

    Raises:
        InputError: for a directory (named as ``option``) that cannot be written, or when the
            package ``protobuf`` is missing.
    """
    message_classes()
    make_folder(option, directory)
    paths = []
    for rank in ranks:
        path = directory / f"{name}.{rank.header.rank}.et"
        try:
            with replacing_bytes(path) as file:
                write_message(file, _metadata(rank))
                for node in rank.nodes:
                    write_message(file, node)
        except OSError as error:
            raise unwritable(option, path, error) from error
        paths.append(path)
    groups_path = directory / f"{name}{GROUPS_SUFFIX}"
    write_output(option, groups_path, json.dumps(groups.declared()) + "\n")
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
