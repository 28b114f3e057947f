"""A step's program as activities of all its ranks, whose communication may meet on a network.

Block-level replay has one rank a stage, as its peers do the same at the same time. On a network
they need not: one replica's transfers may share an uplink that another's do not. So here every
*lane* (the tensor- and context-parallel ranks of one stage and replica, which are in step layer by
layer) runs its stage's tasks, taking as long as they took replayed alone. Blocking sends, boundary
lags, data-parallel tasks and what blocks exchange inside become messages of all lanes that a
communicator joins: each begins when the last of them is there, and all wait for its end.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.collectives.price import CollectivePrice
from trainscout.simulators.predictor.network.choice import NetworkChoice
from trainscout.simulators.predictor.network.collectives.congestion import Pattern, group_transfers
from trainscout.simulators.predictor.network.collectives.play import crossings, play
from trainscout.simulators.predictor.network.collectives.transfers import (
    Transfers,
    groups,
    split,
    together,
    transfers,
)
from trainscout.simulators.predictor.network.together.activities import WORK, Activities, Message
from trainscout.simulators.predictor.network.topology.routing import find_routes
from trainscout.simulators.predictor.question.schedules import crossed
from trainscout.simulators.predictor.workload.communicators import dimension, spans
from trainscout.simulators.predictor.workload.ir import Block, Collective, SendRecv

from .assemble import Assembler, Program
from .boundary import Boundary, boundary_leaves_node
from .congestion import Congestion
from .device_block import group_slowdowns, overlap_groups
from .engine import Floats, Ints, Times
from .priced import PricedOp

# Bytes for which a message's time on an unshared network is taken; it is in proportion to them.
_UNIT_BYTES = 1e9


@dataclass(frozen=True, eq=False)
class StepActivities:
    """``activities`` of a step; ``communicator`` of each (empty: work), and by pass of every
    stage's order, shape (stages, lanes, passes), the activity that ends it."""

    activities: Activities
    communicator: tuple[str, ...]
    pass_ends: Ints


@dataclass(frozen=True)
class _TaskPart:
    """Part of a task: ``seconds`` of work, or of a communication ``op`` priced ``price``; beside
    it, where it overlaps kernels, ``work_s`` of those."""

    seconds: float
    op: Collective | SendRecv | None = None
    price: CollectivePrice | None = None
    work_s: float = 0.0


@dataclass(frozen=True, eq=False)
class _Gang:
    """Lanes that one communicator joins, and what they send: ``unit_s`` per byte on a network
    where nothing is shared, after ``hops_s``. Nothing where no node is left."""

    lanes: tuple[int, ...]
    made: Transfers | None
    unit_s: float = 0.0
    hops_s: float = 0.0


def step_activities(
    assembler: Assembler, program: Program, times: Times, congestion: Congestion
) -> StepActivities:
    """The activities of a program that was replayed with nothing else on the network.

    Args:
        assembler, program, times: the program, assembled at prices of each communication alone,
            and when its tasks ran.
        congestion: knows the network, and which communicators are played.

    Raises:
        InputError: when no working path joins two GPUs that communicate.
    """
    return _Build(assembler, program, times, congestion).activities()


class _Build:
    def __init__(
        self, assembler: Assembler, program: Program, times: Times, congestion: Congestion
    ) -> None:
        self.of, self.program, self.congestion = assembler, program, congestion
        self.job = assembler.job
        self.took: Floats = times.end - times.start
        self.spans = spans(self.job)
        self.lanes = self.job.dp
        self.lane_ranks = self.job.recipe.tp * self.job.recipe.cp
        ((stages, self.stage_apart),) = self.spans["pp"]
        self.stages = stages
        self.lane_apart = self.spans["dp"][-1][1] if self.lanes > 1 else self.lane_ranks
        self.model = congestion.model
        self.seconds: list[float] = []
        self.message: list[int] = []
        self.communicator: list[str] = []
        self.edges: list[tuple[int, int]] = []
        self.messages: list[Message] = []
        self.message_of: dict[tuple[object, ...], int] = {}
        self.gangs: dict[tuple[Pattern, str, int], list[_Gang]] = {}
        self.unshared: dict[Pattern, dict[int, float]] = {}
        self.sends: dict[tuple[int, int, int], _Gang] = {}
        self.parts_of: dict[tuple[Hashable, ...], list[_TaskPart]] = {}
        # Activities that stand for the beginning and the end of each task of each lane.
        shape = (len(self.took), self.lanes)
        self.first = np.full(shape, -1, dtype=np.int64)
        self.last = np.full(shape, -1, dtype=np.int64)

    def activities(self) -> StepActivities:
        tasks = self.program.tasks
        stage_of = tasks.stream_rank[tasks.task_streams]
        contents = dict(self._contents())
        for task, stage in enumerate(stage_of.tolist()):
            if stage == self.stages:
                self.first[task] = self.last[task] = self.add(0.0)
            else:
                self._unfold(task, stage, contents.get(task))
        self._join(stage_of)
        before, after = np.array(sorted(set(self.edges)), dtype=np.int64).reshape(-1, 2).T
        made = Activities(
            np.array(self.seconds),
            np.array(self.message, dtype=np.int64),
            before,
            after,
            tuple(self.messages),
        )
        pass_ends = np.stack([self.last[tasks].T for tasks in self.program.structure.pass_end])
        return StepActivities(made, tuple(self.communicator), pass_ends)

    def add(self, seconds: float, message: int = WORK, communicator: str = "") -> int:
        self.seconds.append(seconds)
        self.message.append(message)
        self.communicator.append(communicator)
        return len(self.seconds) - 1

    def _contents(self) -> Iterator[tuple[int, tuple[list[Block], float, tuple[int, int] | None]]]:
        """Blocks of each task that has some, and the transfer that ends it: its seconds, and the
        stage it goes to with the boundary it crosses."""
        for stage in range(self.stages):
            for each in self.of.contents(self.program, stage):
                sent_s, send = 0.0, None
                if each.ends:
                    sent_s = self.of.sent_s(stage, each.chunk, each.way)
                    to = self.of.sent_to(stage, each.chunk, each.way)
                    send = None if to is None else (to, crossed(stage, to))
                yield each.task, (each.blocks, sent_s, send)
        for task, block in self.program.blocks.items():
            yield task, ([block], 0.0, None)

    def _unfold(
        self,
        task: int,
        stage: int,
        content: tuple[list[Block], float, tuple[int, int] | None] | None,
    ) -> None:
        """One task's activities, of every lane of its stage."""
        blocks, sent_s, send = content or ([], 0.0, None)
        parts = self._scaled(self._parts(blocks), self.took[task] - sent_s)
        data_parallel = bool(self.program.structure.communication[task])
        ends = [-1] * self.lanes
        for part in parts:
            nodes = self._part(part, stage, data_parallel)
            for lane, (first, last) in enumerate(nodes):
                if ends[lane] < 0:
                    self.first[task, lane] = first
                else:
                    self.edges.append((ends[lane], first))
                ends[lane] = last
        if send is not None:
            for lane in range(self.lanes):
                first, last = self._send(stage, *send, lane, sent_s)
                self.edges.append((ends[lane], first))
                ends[lane] = last
        self.last[task] = ends

    def _parts(self, blocks: Iterable[Block]) -> list[_TaskPart]:
        found: list[_TaskPart] = []
        for block in blocks:
            if (block.digest,) not in self.parts_of:
                self.parts_of[(block.digest,)] = self._of_block(block)
            for part in self.parts_of[(block.digest,)]:
                if part.op is None and found and found[-1].op is None:
                    found[-1] = _TaskPart(found[-1].seconds + part.seconds)
                else:
                    found.append(part)
        return found or [_TaskPart(0.0)]

    def _of_block(self, block: Block) -> list[_TaskPart]:
        """A block cut at the communication that is played."""
        ops = self.of.pricer.operations(block)
        if self.of.pricer.launch_blocking or not any(map(self._is_played, ops)):
            if len(ops) == 1 and ops[0].communication is not None:
                return [self._communication(ops[0], ops[0].seconds)]
            return [_TaskPart(self.of.pricer.block(block).seconds)]
        overlapped = list(overlap_groups(ops))
        overlap = self.of.pricer.factors.overlap_time
        slowdowns = iter(group_slowdowns(overlapped, self.job.gpu, overlap))
        found, place = [], 0
        for group in overlapped:
            found += [self._single(each) for each in ops[place : group.place]]
            factors = next(slowdowns) if group.overlaps else (1.0, 1.0)
            found.append(self._overlapped(group.first, group.compute_s, *factors))
            found += [
                self._single(each) for each in group.overlapped if each.communication is not None
            ]
            place = group.place + 1 + len(group.overlapped)
        return found + [self._single(each) for each in ops[place:]]

    def _single(self, priced: PricedOp) -> _TaskPart:
        if self._is_played(priced):
            return self._communication(priced, priced.seconds)
        return _TaskPart(priced.seconds)

    def _overlapped(
        self, first: PricedOp, compute_s: float, slower: float, slower_wires: float
    ) -> _TaskPart:
        """A communication with the kernels it runs beside: both slowed until one ends."""
        together_s = min(compute_s * slower, first.seconds * slower_wires)
        kernels_s = together_s + compute_s - together_s / slower
        wires_s = together_s + first.seconds - together_s / slower_wires
        if self._is_played(first):
            return self._communication(first, wires_s, kernels_s)
        return _TaskPart(max(kernels_s, wires_s))

    def _is_played(self, priced: PricedOp) -> bool:
        op = priced.op
        return isinstance(op, Collective | SendRecv) and self._plays(op.communicator)

    def _plays(self, communicator: str) -> bool:
        group = self.of.pricer.communicators[communicator]
        return self.congestion.covers(communicator) and group.nodes > 1 and group.size > 1

    @staticmethod
    def _communication(priced: PricedOp, seconds: float, work_s: float = 0.0) -> _TaskPart:
        assert isinstance(priced.op, Collective | SendRecv)
        return _TaskPart(seconds, priced.op, priced.communication, work_s)

    @staticmethod
    def _scaled(parts: list[_TaskPart], seconds: float) -> list[_TaskPart]:
        """Pieces as long as the task was: work takes what waits for the host and overlap added,
        communication only where there is nothing else."""
        work_s = sum(each.seconds if each.op is None else 0.0 for each in parts)
        message_s = sum(max(each.seconds, each.work_s) for each in parts if each.op is not None)
        if work_s > 0 and seconds >= message_s:
            by = (seconds - message_s) / work_s
            return [_TaskPart(each.seconds * by) if each.op is None else each for each in parts]
        by = seconds / (work_s + message_s) if work_s + message_s else 0.0
        return [
            _TaskPart(each.seconds * by, each.op, each.price, each.work_s * by) for each in parts
        ]

    def _part(self, part: _TaskPart, stage: int, joins: bool) -> list[tuple[int, int]]:
        """First and last activity of a piece in every lane of a stage."""
        if part.op is None:
            return [(node, node) for node in (self.add(part.seconds) for _ in range(self.lanes))]
        found: dict[int, tuple[int, int]] = {}
        for number, gang in enumerate(self._gangs(part, stage)):
            message = WORK
            if gang.made is not None:
                message = self._message(("gang", stage, number, part.op.communicator), gang, part)
            elif not joins:
                for lane in gang.lanes:
                    node = self.add(max(part.seconds, part.work_s))
                    found[lane] = node, node
                continue
            node = self.add(part.seconds, message, part.op.communicator)
            for lane in gang.lanes:
                found[lane] = node, node
                if part.work_s:
                    begin, end = self.add(0.0), self.add(0.0)
                    kernels = self.add(part.work_s)
                    self.edges += [(begin, node), (begin, kernels), (node, end), (kernels, end)]
                    found[lane] = begin, end
        return [found[lane] for lane in range(self.lanes)]

    def _gangs(self, part: _TaskPart, stage: int) -> list[_Gang]:
        """The lanes that a communicator joins in a stage, with their transfers."""
        op, price = part.op, part.price
        assert op is not None
        assert price is not None
        if op.communicator not in self.spans:
            # Ranks of several stages: nothing of it is played.
            return [_Gang((lane,), None) for lane in range(self.lanes)]
        played = self._plays(op.communicator)
        patterns = self.congestion.patterns(op, price) if played else []
        what = patterns[0] if patterns else Pattern("round", self.spans[op.communicator])
        key = (what, op.communicator, stage)
        if key not in self.gangs:
            takes_s = self._unshared_s(what) if played else {}
            self.gangs[key] = [
                self._gang(lanes, [group_transfers(what, ranks, self.model.network.nccl_node)
                                   for ranks in rows] if played else [],
                           max(takes_s.get(int(ranks[0]), 0.0) for ranks in rows))
                for lanes, rows in self._joined(what, stage)
            ] or [_Gang((lane,), None) for lane in range(self.lanes)]  # fmt: skip
        return self.gangs[key]

    def _unshared_s(self, what: Pattern) -> dict[int, float]:
        """What each group, by its first rank, takes for ``_UNIT_BYTES`` on a network where nothing
        is shared but what prices count: their own node's links, with all groups at once."""
        if what not in self.unshared:
            members = groups(self.job.world_size, what.span)
            made = [
                group_transfers(what, ranks, self.model.network.nccl_node) for ranks in members
            ]
            fluid = NetworkChoice("flow", queue_pairs=self.model.settings.queue_pairs)
            played = play(self.model.ideal, together(made), _UNIT_BYTES, fluid)
            ends = np.split(played.end_s, np.cumsum([len(each.share) for each in made])[:-1])
            self.unshared[what] = {
                int(ranks[0]): float(end.max(initial=0.0))
                for ranks, end in zip(members, ends, strict=True)
            }
        return self.unshared[what]

    def _joined(self, what: Pattern, stage: int) -> list[tuple[tuple[int, ...], list[Ints]]]:
        """Lanes of a stage that groups join, with those groups; of pipelines in the first."""
        members = groups(self.job.world_size, what.span)
        own = members[members[:, 0] // self.stage_apart % self.stages == stage]
        lanes = own // self.lane_apart % self.lanes
        found: dict[tuple[int, ...], list[Ints]] = {}
        for ranks, row in zip(own, lanes, strict=True):
            found.setdefault(tuple(sorted(set(row.tolist()))), []).append(ranks)
        return sorted(found.items())

    def _gang(self, lanes: tuple[int, ...], made: list[Transfers], takes_s: float) -> _Gang:
        """A gang whose transfers take ``takes_s`` for ``_UNIT_BYTES`` where nothing is shared."""
        if not made:
            return _Gang(lanes, None)
        whole, ideal = together(made), self.model.ideal
        routes = find_routes(ideal, whole.source, whole.destination, whole.label)
        if not (routes.links >= ideal.first["nic"]).any():
            return _Gang(lanes, None)
        hops_s = float(routes.latency_s.max())
        parts = split(whole, self.model.network.planes * self.model.settings.queue_pairs)
        return _Gang(lanes, parts, (takes_s - hops_s) / _UNIT_BYTES, hops_s)

    def _message(self, key: tuple[object, ...], gang: _Gang, part: _TaskPart) -> int:
        """The message that takes ``piece.seconds`` where nothing is shared."""
        key = (*key, part.op, part.seconds)
        if key not in self.message_of:
            assert gang.made is not None
            assert part.op is not None
            assert part.price is not None
            group = self.of.pricer.communicators[part.op.communicator]
            least_s = self.congestion.least_s(part.op, True, group, part.price)
            least_s = max(min(least_s, part.seconds), gang.hops_s)
            moving_s = max(part.seconds - least_s, 0.0)
            self.message_of[key] = len(self.messages)
            self.messages.append(
                Message(
                    gang.made,
                    moving_s / gang.unit_s,
                    least_s - gang.hops_s,
                    dimension(part.op.communicator),
                )
            )
        return self.message_of[key]

    def _send(
        self, stage: int, to: int, boundary_of: int, lane: int, seconds: float
    ) -> tuple[int, int]:
        """A transfer between stages: the sending, then what is done about it on arrival."""
        boundary = self.of.boundaries[boundary_of]
        gang = self._sending(stage, to, lane)
        if gang.made is None or not boundary_leaves_node(self.job)[boundary_of]:
            node = self.add(seconds)
            return node, node
        part = _TaskPart(boundary.price.seconds, boundary.sent, boundary.price)
        number = self._message(("send", stage, to, lane), gang, part)
        node = self.add(part.seconds, number, "pp")
        return node, self._gathered(boundary, node)

    def _gathered(self, boundary: Boundary, node: int) -> int:
        if not boundary.arrived_s:
            return node
        after = self.add(boundary.arrived_s)
        self.edges.append((node, after))
        return after

    def _sending(self, stage: int, to: int, lane: int) -> _Gang:
        key = (stage, to, lane)
        if key not in self.sends:
            for number, gang in enumerate(self._pairs(stage, to)):
                self.sends[(stage, to, number)] = gang
        return self.sends[key]

    def _pairs(self, stage: int, to: int) -> list[_Gang]:
        """As ``_gangs``, of every lane's equal transfers between two stages: as long as their
        fullest link takes, with those of all lanes at once."""
        if not self.congestion.covers("pp"):
            return [_Gang((lane,), None) for lane in range(self.lanes)]
        ideal, ways = self.model.ideal, self.model.network.planes * self.model.settings.queue_pairs
        of_lanes = np.arange(self.lanes)[:, None] * self.lane_apart + np.arange(self.lane_ranks)
        ends = of_lanes.reshape(-1, 1) + np.array([stage, to]) * self.stage_apart
        made = split(transfers(ends, 1.0), ways)
        routes = find_routes(ideal, made.source, made.destination, made.label)
        carried = np.bincount(*crossings(routes, made.share), ideal.num_links)
        busy_s = np.where(routes.links >= 0, (carried / ideal.rate_bytes_per_s)[routes.links], 0.0)
        found = []
        for lane, rows in enumerate(np.split(np.arange(len(made)), self.lanes)):
            gang = _Gang((lane,), None)
            if np.any(routes.links[rows] >= ideal.first["nic"]):
                own = (made.source[rows], made.destination[rows], made.share[rows])
                of = Transfers(*own, made.label[rows])
                hops_s = float(routes.latency_s[rows].max())
                gang = _Gang((lane,), of, float(busy_s[rows].max()), hops_s)
            found.append(gang)
        return found

    def _join(self, stage_of: Ints) -> None:
        """Order of streams, and the dependencies between tasks."""
        tasks = self.program.tasks
        for low, high in zip(tasks.order_start[:-1], tasks.order_start[1:], strict=True):
            order = tasks.stream_tasks[low:high]
            for one, other in zip(order[:-1].tolist(), order[1:].tolist(), strict=True):
                self._then(one, other)
        for one, other, lag in zip(*(each.tolist() for each in self.program.edges), strict=True):
            if not lag:
                self._then(one, other)
                continue
            here, there = int(stage_of[one]), int(stage_of[other])
            for lane in range(self.lanes):
                first, last = self._send(here, there, crossed(here, there), lane, lag)
                self.edges += [
                    (int(self.last[one, lane]), first),
                    (last, int(self.first[other, lane])),
                ]

    def _then(self, one: int, other: int) -> None:
        self.edges += zip(self.last[one].tolist(), self.first[other].tolist(), strict=True)
