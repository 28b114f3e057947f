"""Export: ranks of a job as Chakra execution traces, with the file of their communicators.

A rank's nodes are its operations, communications and CPU work; memory, ranges and call sites are
left out, and so are strides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Streaming, kernel_flops
from trainscout.simulators.virtual_cluster.traces.chakra.arguments import texts
from trainscout.simulators.virtual_cluster.traces.chakra.schema import attribute
from trainscout.simulators.virtual_cluster.traces.chakra.writer import (
    MICROSECOND,
    Groups,
    RankNodes,
    collective,
    computation,
    host_work,
    place,
    transfer,
    write_ranks,
)
from trainscout.simulators.virtual_cluster.traces.collate import Collated
from trainscout.simulators.virtual_cluster.traces.dependencies import Dependencies
from trainscout.simulators.virtual_cluster.traces.events import (
    Collective,
    Event,
    HostGap,
    Op,
    Phase,
    PointToPoint,
)
from trainscout.simulators.virtual_cluster.traces.lowering import lower
from trainscout.simulators.virtual_cluster.traces.vocabulary import tensor_bytes, tensors

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

    def nodes(self, events: Iterable[Event]) -> Iterator[Any]:
        dependencies = Dependencies(self._rank)
        phase: Phase | None = None
        host_s, count = 0.0, 0
        for event in events:
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

    def _launched(self, event: Op | Collective | PointToPoint) -> Any:
        if isinstance(event, Op):
            return _operation(event)
        if isinstance(event, Collective):
            return self._collective(event)
        return self._transfer(event)

    def _collective(self, event: Collective) -> Any:
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

    def _transfer(self, event: PointToPoint) -> Any:
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


def _operation(op: Op) -> Any:
    node = computation(op.name, *_work(op))
    for side, arguments in (("inputs", op.inputs), ("outputs", op.outputs)):
        values, shapes, types = texts(arguments)
        info = getattr(node, side)
        info.values, info.shapes, info.types = values, shapes, types
    return node


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
