"""Writes a group's communications down: who takes part, what moves, what waits for what."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor

from trainscout.simulators.predictor.question.cluster import COLLNET_VARIABLE
from trainscout.simulators.virtual_cluster.emulation.memory import DeviceStorage, Parts
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.emulation.tensors.operations import spec_of
from trainscout.simulators.virtual_cluster.emulation.values import Exchange
from trainscout.simulators.virtual_cluster.traces.events import Collective, Group, PointToPoint

from .combine import combine, fill
from .peers import ABSENT
from .work import Arrival, HostWork, VirtualWork

Tensors = list[torch.Tensor]


class Launches:
    """Communications of one group.

    Args:
        state: of the rank.
        name: the group's, equal on all members.
        description: what the framework says the group is for.
        ranks: global ranks of the members, in the group's order.
    """

    def __init__(
        self, state: RankState, name: str, description: str, ranks: tuple[int, ...]
    ) -> None:
        self._state = state
        self._name = name
        self._ranks = ranks
        self.position = ranks.index(state.rank)
        self.size = len(ranks)
        self._sequence = 0
        self._transfers: Counter[tuple[str, int]] = Counter()
        self._batch: int | None = None
        collnet = os.environ.get(COLLNET_VARIABLE) == "1"
        state.recorder.emit(Group(name, description, ranks, collnet))

    def begin_batch(self) -> None:
        """What follows is launched as one group."""
        self._batch = self._state.numbers.batch()

    def end_batch(self) -> None:
        """The group is complete."""
        self._batch = None

    def collective(
        self,
        kind: str,
        inputs: Tensors,
        outputs: Tensors,
        *,
        root: int | None = None,
        reduction: str = "sum",
        splits_in: tuple[int, ...] | None = None,
        splits_out: tuple[int, ...] | None = None,
        blocks_host: bool = False,
    ) -> VirtualWork | None:
        """Launch a collective; ``root`` is an index in the group. None between hosts."""
        tensors = [*inputs, *outputs]
        if tensors and all(_on_host(tensor) for tensor in tensors):
            self._between_hosts(kind, inputs, outputs, root, reduction)
            return None
        state = self._state
        with state.recorder:
            # Scatter and gather have buffers on the root only; in place, both are one.
            sequence = self._sequence
            self._sequence += 1
            work, reads, writes, stream = self._launch(inputs, outputs, outputs, blocks_host)
            even = (
                splits_in is not None
                and splits_out is not None
                and (len({*splits_in, *splits_out}) == 1)
            )
            state.recorder.collectives += 1
            state.recorder.emit(
                Collective(
                    kind=kind,
                    group=self._name,
                    sequence=sequence,
                    bytes_in=_bytes(inputs),
                    bytes_out=_bytes(outputs),
                    dtype=spec_of(tensors[0], None).dtype if tensors else "uint8",
                    stream=stream,
                    work=work.arrival.number,
                    root=None if root is None else self._ranks[root],
                    splits_in=None if even else splits_in,
                    splits_out=None if even else splits_out,
                    inputs=tuple(known.number for known in reads),
                    outputs=tuple(known.number for known in writes),
                    site=state.recorder.sites.current(),
                )
            )
            if kind != "barrier" and not state.peers_agree:
                if splits_in is None and splits_out is not None:
                    splits_in = (inputs[0].numel() // self.size,) * self.size
                work.arrival.arrives = self._follow(
                    kind, inputs, outputs, sequence, root, reduction, splits_in
                )
        return work

    def transfer(self, kind: str, tensor: torch.Tensor, peer: int) -> VirtualWork | HostWork:
        """Launch a send or a receive; ``peer`` is an index in the group."""
        if _on_host(tensor):
            return self._between_two_hosts(kind, tensor, peer)
        state = self._state
        with state.recorder:
            state.recorder.next_step_begins()
            if not 0 <= peer < self.size:
                state.recorder.violation(
                    "unknown peer",
                    f"{kind} names member {peer} of group {self._name} of {self.size}",
                )
                raise ValueError(f"Invalid peer rank {peer} in a group of {self.size}")
            other = self._ranks[peer]
            sequence = self._transfers[kind, other]
            self._transfers[kind, other] += 1
            inputs, outputs = ([tensor], []) if kind == "send" else ([], [tensor])
            # Alone, a transfer has a communicator and a stream of its own for the pair.
            pair = (
                ""
                if self._batch is not None
                else f":{min(self.position, peer)}:{max(self.position, peer)}"
            )
            work, _, _, stream = self._launch(inputs, outputs, [tensor], False, pair)
            known = state.memory.find(tensor.untyped_storage())
            state.recorder.collectives += 1
            state.recorder.emit(
                PointToPoint(
                    kind=kind,
                    group=self._name,
                    peer=other,
                    sequence=sequence,
                    bytes=_bytes([tensor]),
                    dtype=spec_of(tensor, None).dtype,
                    stream=stream,
                    work=work.arrival.number,
                    batch=self._batch,
                    storage=None if known is None else known.number,
                    site=state.recorder.sites.current(),
                )
            )
            work.arrival.arrives = self._follow(kind, inputs, outputs, sequence, peer)
        return work

    @property
    def name(self) -> str:
        """The group's."""
        return self._name

    def count_on(self, event: Collective | PointToPoint, by: int) -> int:
        """Count ``by`` more communications like this; the number that it was at."""
        if isinstance(event, Collective):
            self._sequence += by
            return self._sequence - by
        self._transfers[event.kind, event.peer] += by
        return self._transfers[event.kind, event.peer] - by

    def meet(self) -> None:
        """Between hosts, every member that runs arrives before any goes on."""
        if self._state.peers.run:
            self._state.peers.round(f"barrier {self._name}", None, self._ranks, self._ranks)

    def _between_hosts(
        self, kind: str, inputs: Tensors, outputs: Tensors, root: int | None, reduction: str
    ) -> None:
        """Host tensors are real: what members give is what the others hold, where they run."""
        if any(isinstance(tensor, FakeTensor) for tensor in (*inputs, *outputs)):
            return
        state = self._state
        with torch.no_grad():
            rooted = kind in ("broadcast", "scatter")
            source = self._ranks[root or 0]
            giving = (source,) if rooted else self._ranks
            taking = (source,) if kind in ("gather", "reduce") else self._ranks
            name = f"{kind} {self._name} {source if root is not None else ''}"
            found = state.peers.round(name, inputs, giving, taking)
            if rooted and not found[0][0]:
                state.recorder.invented(f"{kind} between hosts", None, ABSENT)
            elif outputs and found:
                shares = [value if known else inputs for known, value in found]
                if kind in ("all_gather", "gather"):
                    parts = state.values.parts(inputs[0], self.position, self.size) or ()
                    for at, part in enumerate(parts):
                        shares[at] = shares[at] if found[at][0] else [part.value]
                shares *= self.size if rooted else 1
                fill(outputs, combine(kind, shares, self.position, root, reduction))
                self._assumed(kind, outputs, sum(not known for known, _ in found))

    def _assumed(self, kind: str, outputs: Tensors, absent: int) -> None:
        """Report what hosts get of members of which ``absent`` did not run."""
        recorder = self._state.recorder
        if absent and not self._state.peers_agree:
            value = tuple(torch.cat([each.flatten()[:4] for each in outputs[:4]]).tolist())
            hint = f"{absent} ranks did not run here; taken for what this one holds"
            recorder.assumed(f"{kind} between hosts", value, hint)

    def _between_two_hosts(self, kind: str, tensor: torch.Tensor, peer: int) -> HostWork:
        state = self._state
        other = self._ranks[peer]
        ends = (state.rank, other) if kind == "send" else (other, state.rank)
        name = f"transfer {self._name} {ends}"
        if kind == "send":
            state.peers.round(name, tensor, ends[:1], ends[1:])
            return HostWork()

        def arrives() -> None:
            ((known, value),) = state.peers.round(name, None, ends[:1], ends[1:])
            if known:
                with torch.no_grad():
                    tensor.copy_(value)
            else:
                state.recorder.invented("recv between hosts", None, ABSENT)

        return HostWork([tensor], arrives)

    def _follow(
        self,
        kind: str,
        inputs: Tensors,
        outputs: Tensors,
        sequence: int,
        root: int | None,
        reduction: str = "sum",
        splits: tuple[int, ...] | None = None,
    ) -> Callable[[], None] | None:
        """Take note of values; returns what is to be done once the script waits for them."""
        where = (self._name, sequence, self.position, self.size)
        exchange = Exchange(kind, *where, root, reduction, self._ranks, splits)
        return self._state.values.communicate(exchange, inputs, outputs)  # type: ignore[no-any-return]

    def _launch(
        self, inputs: Tensors, outputs: Tensors, result: Tensors, blocks_host: bool, pair: str = ""
    ) -> tuple[VirtualWork, list[DeviceStorage], list[DeviceStorage], int]:
        state = self._state
        state.recorder.launching()
        stream = state.shim.stream()
        own_stream = self._name + pair
        state.order.wait_point(own_stream, state.order.point(stream))
        for parts in (self._parts(inputs), self._parts(outputs)):
            state.memory.materialise(parts)
        state.memory.used(self._parts(inputs), self._parts(outputs), own_stream)
        reads, writes = self._storages(inputs), self._storages(outputs)
        point = state.order.point(own_stream)
        number = state.numbers.work()
        arrival = Arrival(state, number, point, [*inputs, *outputs], blocks_host)
        return VirtualWork(state, arrival, result), reads, writes, stream

    def _parts(self, tensors: Tensors) -> Parts:
        parts = [self._state.memory.part(tensor) for tensor in tensors]
        return [part for part in parts if part is not None]

    def _storages(self, tensors: Tensors) -> list[DeviceStorage]:
        found: dict[int, DeviceStorage] = {}
        for tensor in tensors:
            known = self._state.memory.find(tensor.untyped_storage())
            if known is not None:
                found[known.number] = known
        return list(found.values())


def _on_host(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, FakeTensor) or tensor._fake_device.type == "cpu"


def _bytes(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
