"""Import: Chakra execution traces as traces of ranks, with all that they hold of those.

What comes back: operations with their tensors, communications with their communicators, CPU work,
and the order between all of them (as events and waits: whether a stream or the host waited is not
told). What Chakra has no place for does not: memory, ranges, call sites, strides, values read.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces import events

from .schema import FIELD, CollectiveCommType, NodeType, attributes, parsed, read_messages
from .write import ALL_RANKS, GROUPS_SUFFIX, MICROSECOND, in_order

MAX_NODES = 20_000_000
_FILE = re.compile(r"(.+)\.(\d+)\.et")
_COMMUNICATIONS = (NodeType.COMM_COLL_NODE, NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE)
# What no kind of collective of ours is: the variant in place of a reduce-scatter.
_KINDS: dict[object, str] = {
    **{int(each): each.name.lower() for each in CollectiveCommType},
    int(CollectiveCommType.REDUCE_SCATTER_BLOCK): "reduce_scatter",
}


def read_chakra(directory: Path) -> tuple[events.Trace, ...]:
    """The ranks of ``DIR/NAME.<rank>.et`` in order, with ``DIR/NAME.comm_groups.json`` if there.

    Raises:
        InputError: naming the file and message, for what is missing, damaged or contradicts
            itself.
    """
    name, paths = _rank_files(directory)
    groups_path = directory / f"{name}{GROUPS_SUFFIX}"
    groups = _read_groups(groups_path) if groups_path.exists() else {}
    named = [rank for members in groups.values() for rank in members]
    return tuple(
        _read_rank(path, rank, groups, max([*paths, *named]) + 1) for rank, path in paths.items()
    )


def _rank_files(directory: Path) -> tuple[str, dict[int, Path]]:
    """The name of the directory's one job, and its files by rank."""
    if not directory.is_dir():
        raise InputError(FIELD, directory, "is no directory")
    found: dict[str, dict[int, Path]] = defaultdict(dict)
    for path in directory.iterdir():
        match = _FILE.fullmatch(path.name)
        if match is not None:
            found[match.group(1)][int(match.group(2))] = path
    if not found:
        raise InputError(FIELD, directory, "holds no execution trace", "NAME.0.et and the like")
    if len(found) > 1:
        raise InputError(FIELD, directory, f"holds several jobs: {', '.join(sorted(found))}")
    ((name, paths),) = found.items()
    return name, dict(sorted(paths.items()))


def _read_groups(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        declared = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(FIELD, path, f"cannot be read: {error}") from None
    if type(declared) is not dict:
        raise InputError(FIELD, path, "is no object of communicators")
    for name, ranks in declared.items():
        right = type(ranks) is list and all(type(rank) is int and rank >= 0 for rank in ranks)
        if not right or len(set(ranks)) != len(ranks) or not ranks:
            raise InputError(FIELD, f"{path}: {name}", "is no list of ranks, each once")
    return {name: tuple(ranks) for name, ranks in declared.items()}


@dataclass(frozen=True)
class _Node:
    """A node's message with its attributes, and those it waits for."""

    number: int
    name: str
    kind: int
    waits: tuple[int, ...]
    attributes: dict[str, Any]
    message: Any

    @property
    def on_host(self) -> bool:
        return self.kind == NodeType.COMP_NODE and self.attributes.get("is_cpu_op") is True

    @property
    def stream(self) -> int:
        return _natural(self.attributes.get("stream"), 0)


def _natural(value: object, default: int) -> int:
    return value if type(value) is int and value >= 0 else default


def _read_rank(
    path: Path, rank: int, groups: Mapping[str, tuple[int, ...]], world_size: int
) -> events.Trace:
    try:
        with path.open("rb") as file:
            messages = read_messages(path, file)
            about = attributes(next(messages))
            nodes = _nodes(path, messages)
    except OSError as error:
        raise InputError(FIELD, path, f"cannot be read: {error.strerror or error}") from error
    header = events.Header(
        max(_natural(about.get("world_size"), world_size), rank + 1),
        rank,
        max(_natural(about.get("local_world_size"), 1), 1),
        str(about.get("gpu", "")),
        _natural(about.get("memory_bytes"), 0),
        (),
        {},
    )
    return events.Trace(header, tuple(_Events(path, header, groups, about, nodes).in_order()))


def _nodes(path: Path, messages: Iterator[Any]) -> dict[int, _Node]:
    nodes: dict[int, _Node] = {}
    for message in messages:
        if message.id in nodes:
            raise InputError(FIELD, path, f"has two nodes {message.id}")
        if len(nodes) == MAX_NODES:
            raise InputError(FIELD, path, f"has more than {MAX_NODES} nodes")
        waits = tuple(dict.fromkeys([*message.data_deps, *message.ctrl_deps]))
        nodes[message.id] = _Node(
            message.id, message.name, message.type, waits, attributes(message), message
        )
    for node in nodes.values():
        for number in node.waits:
            if number not in nodes:
                raise InputError(FIELD, path, f"node {node.number} waits for {number}: none such")
    return nodes


def _in_order(path: Path, nodes: Mapping[int, _Node]) -> list[_Node]:
    """Nodes after those they wait for, otherwise as in the file."""
    place = {number: position for position, number in enumerate(nodes)}
    waits = {number: node.waits for number, node in nodes.items()}
    try:
        return [nodes[number] for number in in_order(waits, place.__getitem__)]
    except CycleError as error:
        stuck = error.args[1][0]
        raise InputError(FIELD, path, f"node {stuck} waits for itself, by way of others") from None


class _Events:
    """Turns a rank's nodes into events."""

    def __init__(
        self,
        path: Path,
        header: events.Header,
        groups: Mapping[str, tuple[int, ...]],
        about: Mapping[str, Any],
        nodes: Mapping[int, _Node],
    ) -> None:
        self._path = path
        self._header = header
        self._about = about
        self._nodes = nodes
        everybody = tuple(range(header.world_size))
        self._groups = {str(ALL_RANKS): everybody, "": everybody, **groups}
        self._sequence: Counter[tuple[object, ...]] = Counter()
        self._waited: set[tuple[int, int]] = set()
        self._phase: events.Phase | None = None

    def in_order(self) -> Iterator[events.Event]:
        ordered = _in_order(self._path, self._nodes)
        used = dict.fromkeys(
            self._group_name(node) for node in ordered if node.kind in _COMMUNICATIONS
        )
        for name in used:
            description = str(self._about.get(f"pg_desc:{name}", name))
            yield events.Group(name, description, self._groups[name])
        recorded = self._across_streams(ordered)
        for node in ordered:
            yield from self._of_phase(node)
            if node.on_host:
                yield from self._host_waits(node)
                yield events.HostGap(node.message.duration_micros * MICROSECOND)
            elif node.kind == NodeType.COMP_NODE or node.kind in _COMMUNICATIONS:
                yield from self._stream_waits(node)
                yield self._launch(node)
                if node.number in recorded:
                    yield events.EventRecord(node.number, node.stream)

    def _across_streams(self, ordered: list[_Node]) -> set[int]:
        """Operations that a node elsewhere than on their own stream waits for."""
        return {
            number
            for node in ordered
            for number in node.waits
            if self._is_operation(number)
            and (node.on_host or node.stream != self._nodes[number].stream)
        }

    def _is_operation(self, number: int) -> bool:
        node = self._nodes[number]
        return node.kind == NodeType.COMP_NODE and not node.on_host

    def _of_phase(self, node: _Node) -> Iterator[events.Phase]:
        name, step = node.attributes.get("phase"), node.attributes.get("step")
        if name in events.PHASES and type(step) is int and step >= 0:
            phase = events.Phase(str(name), step)
            if phase != self._phase:
                self._phase = phase
                yield phase

    def _host_waits(self, node: _Node) -> Iterator[events.Event]:
        for number in node.waits:
            if self._is_operation(number):
                yield events.Synchronise("event", number)
            elif self._nodes[number].kind in _COMMUNICATIONS:
                yield events.WorkWait(number, self._nodes[number].stream, blocks_host=True)

    def _stream_waits(self, node: _Node) -> Iterator[events.Event]:
        for number in node.waits:
            before = self._nodes[number]
            if (number, node.stream) in self._waited:
                continue
            if before.kind in _COMMUNICATIONS:
                if not self._on_one_queue(before, node):
                    self._waited.add((number, node.stream))
                    yield events.WorkWait(number, node.stream)
            elif self._is_operation(number) and before.stream != node.stream:
                self._waited.add((number, node.stream))
                yield events.EventWait(number, node.stream)

    def _on_one_queue(self, before: _Node, node: _Node) -> bool:
        """Communications of one communicator run in order by themselves."""
        if node.kind not in _COMMUNICATIONS:
            return False
        return self._group_name(before) == self._group_name(node)

    def _group_name(self, node: _Node) -> str:
        name = node.attributes.get("pg_name", "")
        if name not in self._groups:
            raise self._bad(node, f"communicator {name!r} is not declared")
        if self._header.rank not in self._groups[name]:
            raise self._bad(node, f"rank {self._header.rank} is no member of {name!r}")
        return str(name)

    def _launch(self, node: _Node) -> events.Op | events.Collective | events.PointToPoint:
        if node.kind == NodeType.COMM_COLL_NODE:
            return self._collective(node)
        if node.kind in _COMMUNICATIONS:
            return self._transfer(node)
        return events.Op(
            node.name, self._arguments(node, "inputs"), self._outputs(node), node.stream
        )

    def _arguments(self, node: _Node, side: str) -> tuple[Any, ...]:
        info = getattr(node.message, side)
        return parsed(info.values, info.shapes, info.types)

    def _outputs(self, node: _Node) -> tuple[events.TensorSpec, ...]:
        outputs = self._arguments(node, "outputs")
        return tuple(each for each in outputs if isinstance(each, events.TensorSpec))

    def _collective(self, node: _Node) -> events.Collective:
        comm_type = node.attributes.get("comm_type")
        kind = _KINDS.get(comm_type)
        if kind is None:
            raise self._bad(node, f"comm_type {comm_type!r} is unknown")
        group = self._group_name(node)
        size = self._size(node)
        bytes_in = _natural(node.attributes.get("bytes_in"), size)
        members = len(self._groups[group])
        by_kind = {"all_gather": size * members, "reduce_scatter": size // members}
        return events.Collective(
            kind,
            group,
            self._number(group),
            bytes_in,
            _natural(node.attributes.get("bytes_out"), by_kind.get(kind, size)),
            str(node.attributes.get("dtype", "")),
            node.stream,
            node.number,
            self._root(node, group),
            node.attributes.get("splits_in"),
            node.attributes.get("splits_out"),
        )

    def _root(self, node: _Node, group: str) -> int | None:
        root = node.attributes.get("root")
        if root is not None and root not in self._groups[group]:
            raise self._bad(node, f"root {root!r} is no member of {group!r}")
        return root

    def _transfer(self, node: _Node) -> events.PointToPoint:
        sends = node.kind == NodeType.COMM_SEND_NODE
        kind, end = ("send", "comm_dst") if sends else ("recv", "comm_src")
        group = self._group_name(node)
        peer = node.attributes.get(end)
        if peer not in self._groups[group]:
            raise self._bad(node, f"{end} {peer!r} is no member of {group!r}")
        batch = node.attributes.get("batch")
        return events.PointToPoint(
            kind,
            group,
            peer,
            self._number(group, kind, peer),
            self._size(node),
            str(node.attributes.get("dtype", "")),
            node.stream,
            node.number,
            batch if type(batch) is int and batch >= 0 else None,
        )

    def _size(self, node: _Node) -> int:
        size = node.attributes.get("comm_size")
        if type(size) is not int or size < 0:
            raise self._bad(node, f"comm_size is {size!r}, not a number of bytes")
        return size

    def _number(self, *key: object) -> int:
        self._sequence[key] += 1
        return self._sequence[key] - 1

    def _bad(self, node: _Node, problem: str) -> InputError:
        return InputError(FIELD, f"{self._path}: node {node.number} {node.name!r}", problem)
