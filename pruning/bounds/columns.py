"""A table of recipes on the way to its bounds, by the combinations of what enters them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainscout.pruning.bounds.blocks import (
    PassSizes,
    SlotPrices,
    Slots,
    backward_s,
    pass_s,
    slot_counts,
)
from trainscout.pruning.bounds.exchanges import Exchange, Passing, least_s
from trainscout.pruning.bounds.in_flight import most_held
from trainscout.pruning.bounds.layouts import LAYOUT_FIELDS, MOST_STAGES, Layout
from trainscout.pruning.bounds.paths import KINDS, Paths, find_paths
from trainscout.pruning.bounds.step_end import END_FIELDS, StageEnd, StageHeld
from trainscout.pruning.recipe_table import Distinct, Mask, RecipeTable, distinct
from trainscout.simulators.predictor.collectives.price import open_connections
from trainscout.simulators.predictor.memory.footprint import FRAGMENTATION, SEGMENT_BYTES
from trainscout.simulators.predictor.question import knob
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import knobs_entering
from trainscout.simulators.predictor.question.schedules import schedule_kind
from trainscout.simulators.predictor.replay.boundary import (
    boundary_crosses_domain,
    boundary_seconds,
)
from trainscout.simulators.predictor.replay.prices import Pricer, price_together
from trainscout.simulators.predictor.workload.communicators import communicators, paired
from trainscout.simulators.predictor.workload.megatron import ChunkMode
from trainscout.simulators.predictor.workload.program import Chunk, Workload
from trainscout.simulators.predictor.workload.schedules.passes import BACKWARD, FORWARD
from trainscout.simulators.predictor.workload.schedules.passes import KINDS as KINDS_OF_PASSES
from trainscout.simulators.predictor.workload.shard import Shard

if TYPE_CHECKING:
    from trainscout.pruning.bounds.recipe_bounds import Bounds
T = TypeVar("T")
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# The replay adds up the same seconds in another order, and whole periods that it found equal to
# within 1e-9 (``replay.steady``).
ROUNDING = 1e-8
_BLOCK_FIELDS = knobs_entering(knob.LAYER_BLOCKS)
_PRICE_FIELDS = knobs_entering(knob.LAYER_BLOCKS, knob.HOST)
PASS_FIELDS = knobs_entering(knob.LAYER_BLOCKS, knob.HOST, knob.PASSES, knob.LAYOUT)
_HELD_FIELDS = tuple(name for name in END_FIELDS if name not in knobs_entering(knob.HOST))
_BOUNDARY_FIELDS = knobs_entering(knob.BOUNDARY)
_MICRO_BATCH_FIELDS = knobs_entering(knob.MICRO_BATCHES)
_REPLICA_FIELDS = ("tp", "pp", "cp", "ep", "etp")


@dataclass(frozen=True)
class PassTimes:
    """What depends on passes only, one row a combination of ``PASS_FIELDS``.

    Shape (rows, stages), for the stages that each layout names: ``end_s`` when the last pass ends,
    ``last_backward_s`` when the last micro-batch's first backward pass may begin;
    ``gathered_...`` the same counted from where the last chunk has run forward once.
    """

    end_s: Floats
    last_backward_s: Floats
    gathered_end_s: Floats
    gathered_last_backward_s: Floats


class Columns:
    """One table on the way to its bounds: every row is one combination of what enters its passes
    and one of what ends its step."""

    def __init__(self, bounds: Bounds, table: RecipeTable) -> None:
        self.bounds, self.table = bounds, table
        job = bounds.job(table[0])
        self.framework, self.taught = job.framework, job.training.distillation is not None
        self.passes = table.distinct(PASS_FIELDS)
        self.unique = table.take(self.passes.first)
        # How far apart stages lie, where not as far as there are stages.
        close = self.unique.numbers("use_tp_pp_dp_mapping") == 1
        close_ranks = close * self.unique.numbers("tp") * self.unique.numbers("cp")
        self.layout_of, self.layouts = self.once_each(
            self.unique, "layout", LAYOUT_FIELDS, Layout.of, close_ranks
        )
        self.full = self.unique.holds("recompute", lambda value: value == "full")
        self.layers = self.unique.numbers("recompute_layers")
        self.taper = self.unique.numbers("recompute_taper")
        count_of, counts = self.once_each(
            self.unique, "micro_batches", _MICRO_BATCH_FIELDS, lambda job: job.num_micro_batches
        )
        self.micro_batches = np.array(counts, dtype=np.int64)[count_of]
        # Adapters that no replica shards may be kept in fp32.
        shared_of, shared = self.once_each(
            self.unique, "shared", _REPLICA_FIELDS, lambda job: job.is_replicated
        )
        self.shared = np.array(shared, dtype=np.int64)[shared_of]
        # Gradients of one micro-batch come with its backward pass.
        comes = self.framework.torch_wrappers or self.framework.flattens_gradients
        self.lone = (comes & (self.micro_batches == 1)).astype(np.int64)[self.passes.of]
        self.ends = table.distinct(END_FIELDS, (self.lone,))
        self.slot_rows, self.slot_keys = self.block_combinations(_BLOCK_FIELDS)
        self.slots_of = self.slot_rows.of
        self.slots = [
            bounds.once("slots", key, partial(self.make_slots, row))
            for row, key in zip(self.slot_rows.first.tolist(), self.slot_keys, strict=True)
        ]
        self.run_counts = np.array([each.run_counts for each in self.slots], dtype=np.int64)
        self.schedule_of, self.schedules = self.once_each(
            self.unique, "schedule", ("pp", "schedule"), lambda job: job.schedule
        )

    def once_each(
        self,
        table: RecipeTable,
        what: str,
        names: Sequence[str],
        make: Callable[[Job], T],
        *further: Ints,
    ) -> tuple[Ints, list[T]]:
        """Which combination of ``names`` and ``further`` columns each row has, and ``make`` of
        one job of each."""
        found = table.distinct(names, further)
        answers = []
        values = table.values(names, found.first)
        for row, key in zip(found.first.tolist(), values, strict=True):
            key += tuple(int(column[row]) for column in further)
            answers.append(self.bounds.once(what, key, partial(self.of_job, table, row, make)))
        return found.of, answers

    def of_job(self, table: RecipeTable, row: int, make: Callable[[Job], T]) -> T:
        return make(self.bounds.job(table[row]))

    def block_combinations(self, names: tuple[str, ...]) -> tuple[Distinct, list[tuple[Any, ...]]]:
        """What enters blocks, by the fields ``names``: the combinations of the unique rows, and a
        key for each."""
        single = (self.unique.numbers("pp") == 1).astype(np.int64)
        some = (self.unique.numbers("recompute_layers") >= 0).astype(np.int64)
        some |= self.unique.numbers("recompute_taper") > 0
        lone = ((self.micro_batches == 1) & self.framework.torch_wrappers).astype(np.int64)
        # Every chunk holds as many layers of a teacher.
        chunks = self.unique.numbers("pp") * self.unique.numbers("vpp") * self.taught
        extra = (single, some, lone, self.shared * self.framework.fp32_adapters, chunks)
        found = self.unique.distinct(names, extra)
        return found, [
            key + tuple(int(each[row]) for each in extra)
            for row, key in zip(
                found.first.tolist(), self.unique.values(names, found.first), strict=True
            )
        ]

    def make_slots(self, row: int) -> Slots:
        job = self.bounds.job(self.unique[row])
        recipe = job.recipe
        some = recipe.recompute_layers is not None or recipe.recompute_taper > 0
        shard, mode = Shard.of(job), ChunkMode.of(job)
        return self.bounds.once(
            "slots_of", (shard, mode, some), partial(Slots.of, shard, mode, some_layers=some)
        )

    def groups(self, micro_batches: Ints) -> Iterator[tuple[Ints, Layout, str, int]]:
        """Unique rows that share a pipeline: its layout, schedule and number of micro-batches."""
        found = distinct(
            [
                (len(self.layouts), self.layout_of),
                (len(self.schedules), self.schedule_of),
                (int(micro_batches.max(initial=0)) + 1, micro_batches),
            ],
            len(self.unique),
        )
        order = np.argsort(found.of, kind="stable")
        starts = np.searchsorted(found.of[order], np.arange(len(found.first) + 1))
        for group, first in enumerate(map(int, found.first)):
            layout = self.layouts[self.layout_of[first]]
            schedule = self.schedules[self.schedule_of[first]]
            rows = order[starts[group] : starts[group + 1]]
            yield rows, layout, schedule, int(micro_batches[first])

    def counts(self, layout: Layout, rows: Ints) -> list[Ints]:
        """How many of each slot each kind of chunk of a layout has, shape (rows, slots)."""
        own = self.run_counts[self.slots_of[rows]]
        recomputed = self.full[rows], self.layers[rows], self.taper[rows]
        return [slot_counts(kind, self.slots[0], own, *recomputed) for kind in layout.kinds]

    def sizes(self) -> tuple[Ints, Ints]:
        """As ``footprint``: reserved bytes, and with what is outside the allocator."""
        boundary_bytes = self.boundary_bytes()
        held_bytes = self.held_bytes(boundary_bytes)
        ends = self.stage_ends(StageHeld, "end_bytes", _HELD_FIELDS, self.make_held)
        u, e = self.passes.of, self.ends.of
        allocated = ends["fixed_bytes"][e].astype(np.int64) + held_bytes[u]
        if self.framework.pipeline_buffers == "preallocated":
            places = np.zeros((len(self.layouts), MOST_STAGES), dtype=np.int64)
            for index, layout in enumerate(self.layouts):
                for place, stage in enumerate(layout.stages):
                    places[index, place] = 2 * layout.vpp - (stage == 0) - (stage == layout.pp - 1)
            arriving = places[self.layout_of] * (self.micro_batches * boundary_bytes)[:, None]
            allocated += arriving[u]
        # Where a step has one micro-batch its loss may meet no gradients: as if it always did.
        allocated = np.maximum(
            allocated - ends["absent_bytes"][e].astype(np.int64),
            ends["updating_bytes"][e].astype(np.int64),
        )
        unused = ends["flattened_bytes"][e].astype(np.int64)
        if not self.framework.expandable_segments:
            unused = unused + (allocated * FRAGMENTATION).astype(np.int64)
        reserved = -(-(allocated + unused) // SEGMENT_BYTES) * SEGMENT_BYTES
        # Stages that a layout does not have hold nothing.
        present = ends["fixed_bytes"][e] > 0
        reserved = np.where(present, reserved, 0)
        used = np.where(present, reserved + ends["outside_bytes"][e].astype(np.int64), 0)
        return reserved.max(axis=1), used.max(axis=1)

    def held_bytes(self, boundary_bytes: Ints) -> Ints:
        """The most activations, shape (unique rows, stages)."""
        held = np.zeros((len(self.unique), MOST_STAGES), dtype=np.int64)
        saved, peak = (
            np.stack([getattr(each, name) for each in self.slots], axis=1)
            for name in ("saved", "peak")
        )
        kept = boundary_bytes
        if self.framework.pipeline_buffers == "released":
            kept = np.zeros_like(boundary_bytes)
        stages = self.unique.numbers("pp")
        # As ``footprint``: after three rounds the order of passes repeats.
        plain = np.array([schedule != "1f1b" for schedule in self.schedules])[self.schedule_of]
        distinct_m = np.where(
            plain, self.micro_batches, np.minimum(self.micro_batches, 3 * stages)
        )
        for rows, layout, schedule, m in self.groups(distinct_m):
            of = self.slots_of[rows]
            sizes = [
                PassSizes.of(saved[:, of], peak[:, of], counts)
                for counts in self.counts(layout, rows)
            ]
            for place, stage in enumerate(layout.stages):
                output = kept[rows] if stage != layout.pp - 1 else 0 * rows
                kinds = layout.kind_of[stage]
                held[rows, place] = most_held(schedule, stage, layout.pp, m, kinds, sizes, output)
        return held

    def step_time_s(self) -> Floats:
        times = self.pass_times()
        ends = self.stage_ends(StageEnd, "end", END_FIELDS, self.make_ends)
        return self.put_together(times, ends, self.exchanging_s(ends))

    def passes_alone(self) -> tuple[Ints, Floats]:
        """The most activations of any stage, and when the last pass ends: below ``sizes`` and
        ``step_time_s`` whatever ends the step, which only adds."""
        held_bytes = self.held_bytes(self.boundary_bytes()).max(axis=1)
        return held_bytes[self.passes.of], self.passes_end_s() * (1 - ROUNDING)

    def passes_end_s(self) -> Floats:
        """When the last pass ends."""
        end_s: Floats = self.pass_times().end_s.max(axis=1)[self.passes.of]
        return end_s

    def boundary_bytes(self) -> Ints:
        """What a stage sends on, shape (unique rows,)."""
        of, each = self.once_each(
            self.unique,
            "boundary_bytes",
            _BOUNDARY_FIELDS,
            lambda job: Shard.of(job).boundary_bytes,
        )
        return np.array(each, dtype=np.int64)[of]

    def boundary_s(self, job: Job) -> tuple[float, float]:
        """Seconds of a transfer between domains and inside one."""
        pricer = self.bounds.pricer(job)
        workload = Workload((), dict(pricer.communicators), Shard.of(job).boundary_bytes)
        seconds = boundary_seconds(job, workload, pricer.factors).tolist()
        links = list(zip(boundary_crosses_domain(job), seconds, strict=True))
        between, inside = (
            min((each_s for crosses, each_s in links if crosses is link), default=0.0)
            for link in (True, False)
        )
        return between, inside

    def pass_times(self) -> PassTimes:
        link_of, boundaries = self.once_each(
            self.unique, "boundary", _BOUNDARY_FIELDS, self.boundary_s
        )
        links = np.array(boundaries)[link_of]
        seconds_to = np.full((KINDS, len(self.unique), MOST_STAGES), -np.inf)
        priced_of, prices = self.slot_prices()
        seconds, host_s = (
            np.stack([getattr(each, name) for each in prices], axis=1)
            for name in ("seconds", "host_s")
        )
        for rows, layout, schedule, m in self.groups(self.micro_batches):
            of = priced_of[rows]
            counts = self.counts(layout, rows)
            ways = KINDS_OF_PASSES if schedule_kind(schedule).splits_backward else 2
            passes = np.column_stack(
                [pass_s(seconds[:, of], host_s[:, of], each, 0) for each in counts]
                + [backward_s(seconds[:ways, of], host_s[:ways, of], each) for each in counts]
                + [links[rows]]
            )
            longest_s = self.paths(layout, schedule, m).longest_s(passes)
            seconds_to[:, rows, : len(layout.stages)] = longest_s.transpose(2, 0, 1)
        return PassTimes(*seconds_to)

    def slot_prices(self) -> tuple[Ints, list[SlotPrices]]:
        """Prices of the slots, and which each unique row has."""
        rows, plain = self.block_combinations(_PRICE_FIELDS)
        # All rows alike: what is split is split in all that are bounded together.
        split = any(schedule_kind(schedule).splits_backward for schedule in self.schedules)
        keys = [(*key, split) for key in plain]
        # Combinations of one content, whose blocks meet the same groups, have one price.
        contents: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        new: dict[tuple[Any, ...], tuple[Slots, Pricer]] = {}
        for key, row, of in zip(
            keys, rows.first.tolist(), self.slots_of[rows.first].tolist(), strict=True
        ):
            if not self.bounds.knows("slot_prices", key):
                slots = self.slots[of]
                pricer = self.bounds.pricer(self.bounds.job(self.unique[row]))
                content = (id(slots), *pricer.key(slots.communicators), split)
                contents[key] = content
                if not self.bounds.knows("prices_of", content):
                    new[content] = slots, pricer
        price_together(
            (pricer, part)
            for slots, pricer in new.values()
            for _, _, part in slots.parts(halves=split)
        )

        def make(key: tuple[Any, ...]) -> SlotPrices:
            content = contents[key]
            return self.bounds.once(
                "prices_of", content, lambda: SlotPrices.of(*new[content], halves=split)
            )

        return rows.of, [self.bounds.once("slot_prices", key, partial(make, key)) for key in keys]

    def paths(self, layout: Layout, schedule: str, micro_batches: int) -> Paths:
        blocking = layout.vpp == 1 or not self.framework.overlap_p2p
        return self.bounds.once(
            "paths",
            (layout, schedule, micro_batches, blocking),
            lambda: find_paths(layout, schedule, micro_batches, blocking=blocking),
        )

    def stage_ends(
        self, kind: type[Any], what: str, reads: tuple[str, ...], make: Callable[[int], list[Any]]
    ) -> dict[str, NDArray[Any]]:
        """The fields of ``kind``, which depend on what ``make`` reads, as arrays of shape
        (combinations, stages); zero where a layout has fewer stages to look at."""
        names = [field.name for field in fields(kind)]
        read = operator.attrgetter(*names)
        columns = np.zeros((len(self.ends.first), MOST_STAGES, len(names)))
        keys = self.table.values(reads, self.ends.first)
        for index, (row, key) in enumerate(zip(self.ends.first.tolist(), keys, strict=True)):
            stages = self.bounds.once(what, (*key, int(self.lone[row])), partial(make, row))
            columns[index, : len(stages)] = [read(stage) for stage in stages]
        return dict(zip(names, np.moveaxis(columns, 2, 0), strict=True))

    def stage_chunks(self, row: int) -> tuple[Layout, list[list[Chunk]]]:
        """The chunks of each of a row's stages."""
        unique = int(self.passes.of[row])
        layout, blocks = self.layouts[self.layout_of[unique]], self.slots_of[unique]
        recomputed = (self.full.item(unique), self.layers.item(unique), self.taper.item(unique))
        key = (self.slot_keys[blocks], layout, recomputed)
        return layout, self.bounds.once("stages", key, partial(self.make_stages, unique))

    def make_stages(self, unique: int) -> list[list[Chunk]]:
        layout, combination = self.layouts[self.layout_of[unique]], self.slots_of[unique]
        slots, blocks = self.slots[combination], self.slot_keys[combination]
        # Chunks of equal blocks are one object, which sums its parameters once.
        chunks = [
            self.bounds.once("chunk", (blocks, counts.tobytes()), partial(slots.chunk, counts[0]))
            for counts in self.counts(layout, np.array([unique]))
        ]
        return [[chunks[kind] for kind in layout.kind_of[s]] for s in layout.stages]

    def make_ends(self, row: int) -> list[StageEnd]:
        job = self.bounds.job(self.table[row])
        pricer = self.bounds.pricer(job)
        layout, stages = self.stage_chunks(row)
        pairs = zip(layout.stages, stages, strict=True)
        return [self.bounds.ends.stage(job, pricer, layout, *pair) for pair in pairs]

    def make_held(self, row: int) -> list[StageHeld]:
        job = self.bounds.job(self.table[row])
        groups = communicators(job)
        peers = paired(job)
        connections = self.bounds.once(
            "connections",
            (job.network, *groups.values(), *peers.items()),
            partial(open_connections, groups.values(), peers, job.gpu, job.network),
        )
        return [StageHeld.of(job, chunks, connections) for chunks in self.stage_chunks(row)[1]]

    def exchanging_s(self, ends: dict[str, NDArray[Any]]) -> Floats:
        """What all passes take at least where one stage exchanges beside each, shape (rows,);
        else 0."""
        least_of_rows = np.zeros(len(self.table))
        u, e = self.passes.of, self.ends.of
        whole = np.array([not schedule_kind(each).splits_backward for each in self.schedules])
        alone = np.array([layout.kind_of == ((0,),) for layout in self.layouts])
        every = (ends["gathering_s"] + ends["reducing_s"])[:, 0] > 0
        rows = np.flatnonzero(whole[self.schedule_of][u] & alone[self.layout_of][u] & every[e])
        if self.bounds.congested or not len(rows):
            return least_of_rows
        zero = self.table.numbers("zero_stage")
        found = distinct([(len(self.unique), u[rows]), (len(every), e[rows])], len(rows))
        first = rows[found.first]
        least = np.empty(len(first))
        for number in np.unique(self.layout_of[u[first]]).tolist():
            own = np.flatnonzero(self.layout_of[u[first]] == number)
            some = first[own]
            joined = zero[some] == 2
            least[own] = self.least_exchanging_s(
                self.layouts[number], u[some], e[some], ends, joined
            )
        least_of_rows[rows] = least[found.of]
        return least_of_rows

    def least_exchanging_s(
        self, layout: Layout, u: Ints, e: Ints, ends: dict[str, NDArray[Any]], joined: Mask
    ) -> Floats:
        """The same of unique rows ``u`` of one layout that end as ``e`` says."""
        job = self.bounds.job(self.unique[int(u[0])])
        overlap = self.bounds.pricer(job).factors.overlap_time
        (priced_of, prices), (counts,) = self.slot_prices(), self.counts(layout, u)
        own = [prices[each] for each in priced_of[u].tolist()]
        seconds, host_s, kernel_s = (
            np.stack([getattr(each, name)[: BACKWARD + 1] for each in own], axis=1)
            for name in ("seconds", "host_s", "kernel_s")
        )
        gathers, reduces = (
            Exchange(*(ends[f"{name}_{each}"][e, 0] for each in Exchange._fields))
            for name in ("gathering", "reducing")
        )
        total_s = np.zeros(len(u))
        for way, exchanges in ((FORWARD, [gathers]), (BACKWARD, [gathers, reduces])):
            work_s = counts * seconds[way]
            other_s = np.maximum(0.0, pass_s(seconds, host_s, counts, way) - work_s.sum(axis=1))
            passing = Passing(work_s, kernel_s[way], other_s, joined)
            total_s += least_s(job.gpu, overlap, passing, exchanges)
        return self.micro_batches[u] * total_s

    def put_together(
        self, times: PassTimes, ends: dict[str, NDArray[Any]], exchanging_s: Floats
    ) -> Floats:
        u, e = self.passes.of, self.ends.of
        reduced = np.maximum(ends["reduce_alone_s"], ends["last_reduce_s"])
        # Where stages do not wait for each other, each is as long as it is.
        apart = np.array([schedule_kind(schedule).unsynchronised for schedule in self.schedules])
        apart = apart[self.schedule_of][u]
        first_s = np.where(apart, 0.0, (ends["first_gather_s"][:, 0])[e])
        passed_s = times.end_s[u] + first_s[:, None] + reduced[e]
        gather_s, reduce_s = ends["gather_s"][e], ends["reduce_s"][e]
        # All gathers before the last chunk runs, and all of the last micro-batch's reductions
        # after its first backward pass begins: each one after another.
        last_s = np.maximum(times.last_backward_s[u], gather_s + times.gathered_last_backward_s[u])
        latest_s = np.maximum(passed_s, gather_s + times.gathered_end_s[u] + reduced[e])
        latest_s = np.maximum(latest_s, np.where(reduce_s > 0, last_s + reduce_s, -np.inf))
        # One stream exchanges once or for every micro-batch.
        count = self.micro_batches[u]
        side_s = gather_s + reduce_s + (count - 1)[:, None] * ends["each_s"][e]
        latest_s = np.maximum(latest_s, side_s)
        # Stages that a layout does not have lie at minus infinity.
        latest_s[:, 0] = np.maximum(latest_s[:, 0], exchanging_s)
        latest_s += ends["finish_s"][e]
        step_time_s = np.where(
            apart,
            (latest_s + ends["optimizer_s"][e]).max(axis=1),
            latest_s.max(axis=1) + ends["optimizer_s"].max(axis=1)[e],
        )
        bounded: Floats = step_time_s * (1 - ROUNDING)
        return bounded
