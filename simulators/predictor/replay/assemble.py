"""From priced passes to engine tasks: a compute and a data-parallel stream per stage.

Only unique ranks appear, one per pipeline stage: their data-, tensor- and context-parallel
peers run the same program at the same time. Pipeline transfers are part of the sender's task
when they block it (plain 1F1B and GPipe, as Megatron-LM issues them) and a lag on the
dependency when they run beside compute (interleaved, and where backward passes are split).

Which tasks there are says ``replay.structure``; here they are given their seconds, those of equal
stages once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.schedules import (
    Place,
    crossed,
    receivers,
    schedule_kind,
)
from trainscout.simulators.predictor.workload.ir import Block
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.program import Stage, Workload
from trainscout.simulators.predictor.workload.schedules.passes import FORWARD, pass_blocks
from trainscout.simulators.predictor.workload.schedules.schedule import passes_alone, stage_order
from trainscout.simulators.predictor.workload.weights.data_parallel import (
    GATHER,
    REDUCE,
    Transfer,
    bucket_parameters,
    gather_parameters,
    reduce_gradients,
)

from .boundary import boundary_transfers
from .engine import Floats, Ints, Tasks
from .graph import NEUTRAL_KIND, Kinds
from .passes import PassPrice, PassPricer
from .priced import EVIDENCE, HOST, OPTIMIZER, PART_INDEX, PARTS, PricedBlock
from .prices import Pricer
from .structure import GATHERS, REDUCES, Outline, Sharing, Structure, structure_of, ways_of

PP_PART = PART_INDEX["pp_communication"]
EP_UNIT = np.eye(len(PARTS))[PART_INDEX["ep_communication"]]


@dataclass(frozen=True, eq=False, repr=False)
class StageTable:
    """What the tasks of equal stages take, by slot (``Structure``).

    ``seconds``, and ``kind``: shape (slots,). ``cuts`` as in ``Outline``. ``pass_part_s``, shape
    (kinds of passes, chunks, parts), are those of whole passes by part, ``end_part_s``, shape
    (parts,), those of the step's end. ``content``, shape (slots,), is the place of a task's block
    in ``blocks`` (that of passes is None), in ``evidence_s``, shape (blocks, grades), how well its
    seconds are known, and in ``repeats``: whether it comes again with every micro-batch.
    """

    seconds: Floats
    kind: Ints
    cuts: tuple[bytes, ...]
    pass_part_s: Floats
    end_part_s: Floats
    content: Ints
    blocks: tuple[Block | None, ...]
    evidence_s: Floats
    repeats: np.ndarray
    estimated: frozenset[str]

    @functools.cached_property
    def slot_evidence_s(self) -> Floats:
        """``evidence_s`` by slot, shape (slots, grades)."""
        return self.evidence_s[self.content]

    @functools.cached_property
    def slot_repeats(self) -> np.ndarray:
        """``repeats`` by slot."""
        return self.repeats[self.content]


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """Engine tasks of ``micro_batches`` micro-batches, and what is needed to read the times.

    ``pass_part_s[s]``, shape (parts,), is the time of a micro-batch's passes of stage ``s`` by
    part, ``end_part_s[s]`` that of the tasks after them. ``lag`` is the largest lag into each
    task, ``edge_lags`` those of ``structure.edges``; ``tables`` hold what its slots stand for.
    """

    structure: Structure
    tasks: Tasks
    tables: tuple[StageTable, ...]
    pass_part_s: tuple[Floats, ...]
    end_part_s: tuple[Floats, ...]
    lag: Floats
    edge_lags: Floats
    micro_batches: int

    @property
    def edges(self) -> tuple[Ints, Ints, Floats]:
        """Tasks before, tasks after, lags in seconds."""
        return (*self.structure.edges, self.edge_lags)

    @functools.cached_property
    def blocks(self) -> dict[int, Block]:
        """The content of the tasks that are not passes."""
        held = [table.blocks[place] for table in self.tables for place in table.content.tolist()]
        others = self.structure.others
        slots = self.structure.slot[others].tolist()
        found = zip(others.tolist(), (held[slot] for slot in slots), strict=True)
        return {task: block for task, block in found if block is not None}


@dataclass(frozen=True, eq=False, repr=False)
class Content:
    """The blocks that a task runs, as part of a pass of this kind (``way``), chunk and
    micro-batch, which it ``begins`` and ``ends`` or not."""

    task: int
    blocks: list[Block]
    way: int
    chunk: int
    micro_batch: int
    begins: bool
    ends: bool


class Assembler:
    """Gives the tasks of one job's step their seconds."""

    def __init__(self, job: Job, workload: Workload, pricer: Pricer) -> None:
        self.job = job
        self.workload = workload
        self.pricer = pricer
        self.sharing = Sharing.of(job)
        self.passes = PassPricer(pricer, bucket_parameters(job))
        self.boundaries = boundary_transfers(job, workload, pricer.congestion, pricer.factors)
        self.boundary_s = np.array([each.seconds for each in self.boundaries])
        split = schedule_kind(job.schedule).splits_backward
        self.blocking_sends = not split and (job.recipe.vpp == 1 or not job.framework.overlap_p2p)
        self.transfer = Transfer.of(job)
        self.kinds = Kinds()
        # Hidden states of a frozen model beside travel in the same message.
        frozen = job.reference
        beside = 0.0 if frozen is None else frozen.model.hidden_size / job.model.hidden_size
        self.forward_messages = 1 + job.forwards_beside * beside

    def assemble(self, micro_batches: int) -> Program:
        """The step with ``micro_batches`` micro-batches per replica."""
        job, tables = self.job, self.tables
        recipe = job.recipe
        cuts = tuple(table.cuts for table in tables)
        outline = Outline(job.schedule, recipe.pp, recipe.vpp, micro_batches, self.sharing, cuts)
        structure = structure_of(outline)
        seconds, kind, slowdown = self._columns
        part_s: dict[tuple[int, tuple[float, ...]], Floats] = {}
        pass_part_s = []
        for table, runs in zip(tables, structure.runs, strict=True):
            key = (id(table), runs)
            if key not in part_s:
                times = np.array(runs).reshape(*table.pass_part_s.shape[:2], 1)
                part_s[key] = (table.pass_part_s * times).sum(axis=(0, 1))
            pass_part_s.append(part_s[key])
        work, end_part_s = seconds[structure.slot], [table.end_part_s for table in tables]
        if self.alone_s is not None:
            for stage, alone_s in enumerate(self.alone_s):
                shape = (job.schedule, stage, recipe.pp, recipe.vpp, micro_batches)
                places = passes_alone(*shape)
                way, chunk, _ = stage_order(*shape)[:, places]
                extra_s = alone_s[way, chunk]
                work[structure.compute_tasks[stage][structure.pass_start[stage][places]]] += (
                    extra_s
                )
                # Not by micro-batch: where passes run in pairs, those that run alone begin and end
                # the step, and all of them are in what is played.
                end_part_s[stage] = end_part_s[stage] + extra_s.sum() * EP_UNIT
        tasks = replace(
            structure.tasks,
            work=work,
            kind=kind[structure.slot],
            lags=self._lags[structure.lag_slot],
            slowdown=slowdown,
        )
        return Program(
            structure=structure,
            tasks=tasks,
            tables=tables,
            pass_part_s=tuple(pass_part_s),
            end_part_s=tuple(end_part_s),
            lag=self._lags[structure.task_lag_slot],
            edge_lags=self._lags[structure.edge_lag_slot],
            micro_batches=micro_batches,
        )

    @functools.cached_property
    def tables(self) -> tuple[StageTable, ...]:
        """What each stage's tasks take; equal stages have one table."""
        self.pricer.prepare(self.workload.blocks)
        made: dict[tuple[object, ...], StageTable] = {}
        tables = []
        last = len(self.workload.stages) - 1
        for stage, program in enumerate(self.workload.stages):
            key: tuple[object, ...] = (id(program),)
            if self.blocking_sends and last:
                chunks = range(len(program.chunks))
                for way, chunk in itertools.product(range(2), chunks):
                    key += (self.sent_s(stage, chunk, way), self.synced(stage, chunk, way))
            if key not in made:
                made[key] = _Tabled(self, stage).table()
            tables.append(made[key])
        return tuple(tables)

    @functools.cached_property
    def alone_s(self) -> Floats | None:
        """What passes take longer that no other runs with, where pairs hide exchanges of tokens;
        shape (stages, kinds of passes, chunks)."""
        job = self.job
        if not job.recipe.overlap_moe_expert_parallel_comm:
            return None
        recipe = replace(job.recipe, overlap_moe_expert_parallel_comm=False)
        together_s, apart_s = (
            np.array([self.chunk_seconds(stage) for stage in workload.stages])
            for workload in (self.workload, build_workload(replace(job, recipe=recipe)))
        )
        # Never less than in a pair, which bounds take every pass to be.
        longer_s: Floats = np.maximum(0.0, apart_s - together_s)
        return longer_s

    def chunk_seconds(self, stage: Stage) -> list[list[float]]:
        """What each kind of pass over each chunk of a stage takes."""
        whole, ways = self.passes.whole, range(ways_of(self.job.schedule))
        return [[whole(chunk, way).seconds for chunk in stage.chunks] for way in ways]

    def contents(self, program: Program, stage: int) -> Iterator[Content]:
        """What the tasks of a stage's passes run, in order."""
        structure, recipe = program.structure, self.job.recipe
        tasks, starts = structure.compute_tasks[stage], structure.pass_start[stage].tolist()
        count = program.micro_batches
        order = stage_order(self.job.schedule, stage, recipe.pp, recipe.vpp, count)
        stops = [*starts[1:], structure.pass_tasks[stage]]
        for (way, chunk, micro), start, stop in zip(order.T.tolist(), starts, stops, strict=True):
            whole = self.workload.stages[stage].chunks[chunk]
            if stop - start == 1:
                parts = [[block for block, times in pass_blocks(whole, way) for _ in range(times)]]
            else:
                segments = self.passes.segments(whole, way, self.synced(stage, chunk, way))
                parts = [list(each.blocks) for each in segments]
            for place, blocks in zip(range(start, stop), parts, strict=True):
                ends = place == stop - 1
                yield Content(int(tasks[place]), blocks, way, chunk, micro, place == start, ends)

    def kind_of(self, price: PassPrice) -> int:
        nic_share = self.pricer.nic_share(price.nic_bytes, price.seconds)
        return self.kinds.compute(price.compute_share, price.kernel_s, nic_share)

    @functools.cached_property
    def _columns(self) -> tuple[Floats, Ints, Floats]:
        """Seconds and kinds by slot, those of the barrier last; the slowdowns of kinds."""
        seconds = np.concatenate([*(table.seconds for table in self.tables), [0.0]])
        kinds = np.concatenate([*(table.kind for table in self.tables), [NEUTRAL_KIND]])
        overlap = self.pricer.factors.overlap_time
        return seconds, kinds, self.kinds.slowdowns(self.job.gpu, overlap)

    @functools.cached_property
    def _lags(self) -> Floats:
        """Lags by slot."""
        one_way = np.zeros(self.job.recipe.pp + 1)
        if self.blocking_sends or not self.boundaries:
            return np.concatenate((one_way, one_way))
        one_way[:-1] = self.boundary_s
        return np.concatenate((one_way * self.forward_messages, one_way))

    def pass_price(self, stage: int, chunk: int, direction: int) -> PassPrice:
        """One pass with the transfer that blocks its sender, if any."""
        held = self.workload.stages[stage].chunks[chunk]
        price = self.passes.whole(held, direction, self.synced(stage, chunk, direction))
        sent = self.sent_s(stage, chunk, direction)
        if not sent:
            return price
        parts = price.part_s.copy()
        parts[PP_PART] += sent
        total = price.seconds + sent
        share = price.compute_share * price.seconds / total
        return PassPrice(total, parts, share, price.kernel_s, price.nic_bytes)

    def sent_s(self, stage: int, chunk: int, direction: int) -> float:
        """Blocking transfer after a pass: forward to the next stage, backward to the previous."""
        to = self.sent_to(stage, chunk, direction)
        if to is None:
            return 0.0
        seconds = float(self.boundary_s[crossed(stage, to)])
        return seconds * self.forward_messages if direction == FORWARD else seconds

    def sent_to(self, stage: int, chunk: int, direction: int) -> int | None:
        """The stage that a pass sends to before it ends, if it does."""
        if not self.blocking_sends:
            return None
        return self._receivers[direction].get((stage, chunk))

    def synced(self, stage: int, chunk: int, direction: int) -> bool:
        """Whether nothing is left to run when the host begins to launch a pass: it waited for
        what the pass receives. What sends one way receives the other."""
        waits = self.blocking_sends and self.job.framework.p2p_sync
        return waits and (stage, chunk) in self._receivers[1 - direction]

    @functools.cached_property
    def _receivers(self) -> tuple[dict[Place, int], dict[Place, int]]:
        return receivers(self.job.schedule, self.job.recipe.pp, self.job.recipe.vpp)


class _Tabled:
    """The table of one stage, slot by slot."""

    def __init__(self, of: Assembler, stage: int) -> None:
        self.of, self.stage = of, stage
        self.program = of.workload.stages[stage]
        self.seconds: list[float] = []
        self.kinds: list[int] = []
        self.content: list[int] = []
        self.blocks: list[Block | None] = [None]
        self.evidence = [np.zeros(len(EVIDENCE))]
        self.estimated: set[str] = set()
        self.end_part_s = np.zeros(len(PARTS))

    def table(self) -> StageTable:
        of, chunks = self.of, range(len(self.program.chunks))
        ways = range(ways_of(of.job.schedule))
        wholes = [[of.pass_price(self.stage, chunk, way) for chunk in chunks] for way in ways]
        for price in (price for row in wholes for price in row):
            self.add(price.seconds, of.kind_of(price))
        cuts = tuple(self.add_segments(chunk, way) for way in ways for chunk in chunks)
        self.add_end()
        sharing = of.sharing
        every = {REDUCE: sharing.reduce_every, GATHER: sharing.gather_every}
        return StageTable(
            seconds=np.array(self.seconds),
            kind=np.array(self.kinds),
            cuts=cuts,
            pass_part_s=np.array([[price.part_s for price in row] for row in wholes]),
            end_part_s=self.end_part_s,
            content=np.array(self.content),
            blocks=tuple(self.blocks),
            evidence_s=np.array(self.evidence),
            repeats=np.array([b is not None and every.get(b.name, False) for b in self.blocks]),
            estimated=frozenset(self.estimated),
        )

    def add(self, seconds: float, kind: int, content: int = 0, times: int = 1) -> None:
        self.seconds += [seconds] * times
        self.kinds += [kind] * times
        self.content += [content] * times

    def held(self, block: Block, priced: PricedBlock) -> int:
        """The place of a task's block."""
        self.blocks.append(block)
        self.evidence.append(priced.evidence_s)
        self.estimated |= priced.estimated
        return len(self.blocks) - 1

    def add_segments(self, chunk: int, way: int) -> bytes:
        """The segments of a pass and what they exchange; returns its cuts."""
        of = self.of
        exchanges = of.sharing.exchanges(way)
        if not exchanges:
            return b""
        synced = of.synced(self.stage, chunk, way)
        segments = of.passes.segments(self.program.chunks[chunk], way, synced)
        # Equal segments are one, and mostly follow each other.
        runs = [(next(own), 1 + sum(1 for _ in own)) for _, own in itertools.groupby(segments, id)]
        for segment, times in runs:
            self.add(segment.price.seconds, of.kind_of(segment.price), times=times)
        self.seconds[-1] += of.sent_s(self.stage, chunk, way)
        cuts = dict.fromkeys(map(id, segments), 0)
        again = way != FORWARD and of.job.recipe.recompute == "full"
        gather = functools.partial(gather_parameters, again=again)
        whats = [
            (what, transfer)
            for what, transfer in ((GATHERS, gather), (REDUCES, reduce_gradients))
            if exchanges & what
        ]
        moved = {
            (what, id(segment)): transfer(segment.parameters, of.transfer)
            for what, transfer in whats
            for segment in {id(segment): segment for segment, _ in runs}.values()
            if segment.parameters.held.total
            and not (what == GATHERS and way != FORWARD and segment.kept)
        }
        of.pricer.prepare(moved.values())
        tasks = {key: self.exchanged(block) for key, block in moved.items() if block.ops}
        for what, _ in whats:
            for segment, times in runs:
                if (task := tasks.get((what, id(segment)))) is not None:
                    cuts[id(segment)] |= what
                    self.add(*task, times=times)
        return bytes(cuts[id(segment)] for segment in segments)

    def exchanged(self, block: Block) -> tuple[float, int, int]:
        """The seconds, the kind and the place of the task that gathers or reduces parameters."""
        of, priced = self.of, self.of.pricer.block(block)
        nic_share = of.pricer.nic_share(priced.nic_bytes, priced.seconds)
        kind = of.kinds.communication(priced.channels, priced.wire_bytes_per_s, nic_share)
        return priced.seconds, kind, self.held(block, priced)

    def add_end(self) -> None:
        """Reduction, finish, optimizer and gather that follow the passes."""
        program, transfer = self.program, self.of.transfer
        reduces, gathers = self.of.sharing.ends
        if reduces:
            self.append(reduce_gradients(program.parameters, transfer))
        self.append(program.finish)
        self.append(program.optimizer, PART_INDEX[OPTIMIZER])
        if gathers:
            self.append(gather_parameters(program.parameters, transfer))

    def append(self, block: Block, part: int | None = None) -> None:
        """A task after the passes; its time is all of one ``part`` of the step, or its own."""
        priced, parts = self.of.pricer.block(block), self.end_part_s
        waits_s = max(0.0, priced.host_s - priced.seconds)
        self.add(priced.seconds + waits_s, NEUTRAL_KIND, self.held(block, priced))
        parts[PART_INDEX[HOST]] += waits_s
        if part is None:
            parts[:] += priced.part_s
        else:
            parts[part] += priced.seconds
