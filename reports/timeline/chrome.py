"""An operation timeline as Chrome trace events, which Perfetto and chrome://tracing open.

A process is a rank. Its threads: passes with the blocks they consist of, the host's launches,
kernels, communication inside a pass, data-parallel communication, what is sent to and received
from neighbouring stages. Arrows join a launch and what it launched, what is sent and where it is
received, and the same collective on several of the ranks shown. Counters: memory, links.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainscout.simulators.predictor.kernels.moved_bytes import moved_bytes
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.engine import Floats
from trainscout.simulators.predictor.replay.memory_timeline import MEMORY_KINDS, MemoryTimeline
from trainscout.simulators.predictor.replay.priced import KERNELS, PricedOp, launches_of
from trainscout.simulators.predictor.replay.timeline import (
    COMMUNICATION,
    COMPUTE,
    COPIES,
    DATA_PARALLEL,
    HOST,
    LAUNCH,
    NONE,
    PIPELINE,
    Timeline,
)
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.ranks import Place, group_of, place_of
from trainscout.simulators.virtual_cluster.profiles.predicted import shape_text
from trainscout.simulators.virtual_cluster.traces.chrome import ChromeTrace, chrome_file

# A row this much longer than its operation alone was slowed by what ran beside it.
_SLOWED = 1.0005
_DIGITS = 4


def arguments(priced: PricedOp, seconds: float) -> dict[str, object]:
    """Of an operation that took ``seconds``: units in the names, rates achieved in that time."""
    op = priced.op
    shown: dict[str, object]
    if isinstance(op, ir.Collective | ir.SendRecv):
        shown = {
            "communicator": op.communicator,
            "bytes": op.bytes,
            **_per_s("gb_per_s", op.bytes / 1e9, seconds),
        }
        price = priced.communication
        if price is not None and price.seconds:
            shown |= {
                "algorithm": price.algorithm,
                "protocol": price.protocol,
                "channels": price.channels,
            }
    elif isinstance(op, ir.HostUpdate):
        shown = {
            "host_bytes": op.host_bytes,
            "copied_bytes": op.gradient_bytes + op.parameter_bytes,
        }
    else:
        shown = _of_kernel(op, seconds)
    if seconds > _SLOWED * priced.seconds > 0:
        shown["slowdown"] = _rounded(seconds / priced.seconds)
    return shown | {"evidence": str(priced.evidence)}


def _of_kernel(op: ir.Kernel, seconds: float) -> dict[str, object]:
    assert isinstance(op, KERNELS)
    flops, moved = ir.kernel_flops(op), moved_bytes(op)
    shown: dict[str, object] = {}
    if not isinstance(op, ir.Streaming):
        shown["shape"] = f"{shape_text([op])} {op.dtype}"
    if flops:
        shown |= {"flops": flops, **_per_s("tflop_per_s", flops / 1e12, seconds)}
    return shown | {"bytes": moved, **_per_s("gb_per_s", moved / 1e9, seconds)}


def _per_s(name: str, amount: float, seconds: float) -> dict[str, object]:
    return {name: _rounded(amount / seconds)} if seconds > 0 else {}


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


# Thread numbers decide the order that threads are shown in.
PASS_THREAD = 0
_THREADS = {
    HOST: (1, "host launches"),
    COMPUTE: (2, "kernels"),
    COMMUNICATION: (3, "communication"),
    DATA_PARALLEL: (4, "data parallelism"),
}
SEND_THREAD, RECEIVE_THREAD = 100, 200
MEMORY_COUNTER = "memory (bytes)"
LINK_COUNTERS = {"nvlink": "NVLink sent (bytes/s)", "nic": "NIC sent (bytes/s)"}
# Some 200 bytes each: what a browser can still open.
MOST_SLICES = 5_000_000


def write_chrome(
    option: str,
    path: Path,
    job: Job,
    timeline: Timeline,
    ranks: Sequence[int],
    memory: MemoryTimeline,
) -> None:
    """Write a timeline of a valid job as ``ranks`` see it; compressed where ``path`` ends in .gz.

    Raises:
        InputError: naming ``option``, when it cannot be written or would be too large.
    """
    places = {rank: place_of(job, rank) for rank in ranks}
    rows = np.bincount(timeline.stage, minlength=job.recipe.pp)
    count = sum(int(rows[place.stage]) for place in places.values())
    if count > MOST_SLICES:
        problem = f"would hold {count} operations of {len(ranks)} ranks"
        allowed = f"at most {MOST_SLICES}: fewer timeline.ranks or timeline.micro_batches"
        raise InputError(option, path, problem, allowed)
    with chrome_file(option, path) as trace:
        numbers = itertools.count(1)
        stages = {place.stage for place in places.values()}
        shown = {stage: _Stage(timeline, stage) for stage in sorted(stages)}
        for rank, place in places.items():
            trace.process(rank, _name(job, rank, place))
            stage = shown[place.stage]
            stage.write(trace, rank, numbers)
            _write_memory(trace, rank, place.stage, memory)
            for link, use in stage.links.items():
                rates = map(round, use.bytes_per_s.tolist())
                trace.counter_over_time(LINK_COUNTERS[link], rank, use.at_s.tolist(), rates)
        for ends in _transfer_arrows(job, timeline, ranks, shown):
            trace.arrow(next(numbers), ends)
        for rendezvous in rendezvous_of(job, timeline, ranks):
            row_ends = [(rank, *shown[places[rank].stage].spot(row)) for rank, row in rendezvous]
            trace.arrow(next(numbers), sorted(row_ends, key=lambda end: end[2]))


def _name(job: Job, rank: int, place: Place) -> str:
    """Stage and rank as wide as the last one's, since processes are sorted by name."""
    stages, ranks = (len(str(count - 1)) for count in (job.recipe.pp, job.world_size))
    name = f"stage {place.stage:0{stages}}, rank {rank:0{ranks}}"
    size = {"tp": job.recipe.tp, "cp": job.recipe.cp, "dp": job.dp, "ep": job.recipe.ep}
    at = ", ".join(f"{each} {getattr(place, each)}" for each, count in size.items() if count > 1)
    return f"{name}: {at}" if at else name


class _Stage:
    """What all ranks of one stage show."""

    def __init__(self, timeline: Timeline, stage: int) -> None:
        self._timeline = timeline
        self._stage = stage
        self.links = link_use(timeline, stage)
        self._rows = np.flatnonzero(
            (timeline.stage == stage) & (timeline.stream != PIPELINE)
        ).tolist()
        sent, to_stage = timeline.sends
        self._sends = self._in_lanes(sent[timeline.stage[sent] == stage])
        self._receives = self._in_lanes(sent[to_stage == stage])
        self._starts, self._ends = timeline.start_s.tolist(), timeline.end_s.tolist()

    def _in_lanes(self, rows: np.ndarray) -> dict[int, int]:
        """Rows of transfers, by start, and the lane of each."""
        times = self._timeline
        rows = rows[np.argsort(times.start_s[rows], kind="stable")]
        intervals = list(
            zip(times.start_s[rows].tolist(), times.end_s[rows].tolist(), strict=True)
        )
        return dict(zip(rows.tolist(), lanes_of(intervals), strict=True))

    def write(self, trace: ChromeTrace, rank: int, numbers: Iterator[int]) -> None:
        """All slices of one rank and the arrows from launches to what they launch."""
        trace.thread(rank, PASS_THREAD, "passes")
        for thread, name in _THREADS.values():
            trace.thread(rank, thread, name)
        for first, name, rows in (
            (SEND_THREAD, "send", self._sends),
            (RECEIVE_THREAD, "receive", self._receives),
        ):
            for lane in range(max(rows.values(), default=NONE) + 1):
                trace.thread(rank, first + lane, f"{name} {lane + 1}" if lane else name)
        for name, start_s, end_s, args in self._spans():
            trace.slice(name, rank, PASS_THREAD, start_s, end_s, args)
        self._write_rows(trace, rank, numbers)
        for first, name, rows in (
            (SEND_THREAD, "send", self._sends),
            (RECEIVE_THREAD, "receive", self._receives),
        ):
            for row, lane in rows.items():
                start_s, end_s = self._starts[row], self._ends[row]
                args = self._arguments(row)
                trace.slice(name, rank, first + lane, start_s, end_s, args)

    def _write_rows(self, trace: ChromeTrace, rank: int, numbers: Iterator[int]) -> None:
        timeline = self._timeline
        names = timeline.names
        stream, operation = timeline.stream, timeline.operation
        arrow_of: dict[int, int] = {}
        launched = timeline.launched_by[self._rows]
        # Device work comes after its launch in rows, as it was unrolled.
        leads = {by: row for row, by in zip(self._rows, launched.tolist(), strict=True)}
        for row, by in zip(self._rows, launched.tolist(), strict=True):
            thread = _THREADS[int(stream[row])][0]
            start_s, end_s = self._starts[row], self._ends[row]
            if row in leads:
                number = arrow_of[row] = next(numbers)
                args = self._launches(leads[row])
                trace.slice(LAUNCH, rank, thread, start_s, end_s, args, leads_to=number)
                continue
            waits = timeline.operations[operation[row]] is None
            name = COPIES if waits else names[operation[row]]
            led_by = arrow_of.get(by)
            trace.slice(name, rank, thread, start_s, end_s, self._arguments(row), led_by=led_by)

    def _launches(self, row: int) -> dict[str, object] | None:
        """How many launches an operation of several kernels takes."""
        priced = self._timeline.operations[self._timeline.operation[row]]
        assert priced is not None
        count = launches_of(priced.op)
        return {"launches": count} if count > 1 else None

    def _arguments(self, row: int) -> dict[str, object]:
        timeline = self._timeline
        priced = timeline.operations[timeline.operation[row]]
        args = {} if priced is None else arguments(priced, self._ends[row] - self._starts[row])
        micro_batch = int(timeline.micro_batch[row])
        return args if micro_batch == NONE else {"micro_batch": micro_batch, **args}

    def _spans(self) -> Iterator[tuple[str, float, float, dict[str, object]]]:
        """Passes, each followed by its blocks: name, start, end, arguments.

        Blocks go by their kernels, which run one after another, where they have any: what
        communicates beside the next block would make them overlap.
        """
        timeline, passes = self._timeline, self._timeline.passes
        here = (timeline.stage == self._stage) & (timeline.block != NONE)
        kernels = _bounds(timeline, np.flatnonzero(here & (timeline.stream == COMPUTE)))
        others = _bounds(timeline, np.flatnonzero(here & (timeline.stream != COMPUTE)))
        blocks: dict[int, list[tuple[str, float, float]]] = defaultdict(list)
        for block in sorted({*kernels, *others}):
            start_s, end_s = kernels.get(block) or others[block]
            number = int(timeline.block_pass[block])
            blocks[number].append((timeline.block_name[block], start_s, end_s))
        for number, inside in blocks.items():
            micro_batch, chunk = int(passes.micro_batch[number]), int(passes.chunk[number])
            name = passes.name[number]
            args: dict[str, object] = {}
            if micro_batch != NONE:
                name = f"{name} {micro_batch}"
                args = {"micro_batch": micro_batch, "chunk": chunk}
            yield name, min(each[1] for each in inside), max(each[2] for each in inside), args
            for block_name, start_s, end_s in inside:
                yield block_name, start_s, end_s, {}

    def spot(self, row: int) -> tuple[int, float]:
        """Thread and a time within the slice of a row."""
        middle_s = (self._starts[row] + self._ends[row]) / 2
        if row in self._sends:
            return SEND_THREAD + self._sends[row], middle_s
        return _THREADS[int(self._timeline.stream[row])][0], middle_s

    def received(self, row: int) -> tuple[int, float]:
        """As ``spot``, where the transfer of a row is received."""
        return RECEIVE_THREAD + self._receives[row], (self._starts[row] + self._ends[row]) / 2


def _bounds(timeline: Timeline, rows: np.ndarray) -> dict[int, tuple[float, float]]:
    """Start of the first and end of the last row of each block."""
    if not len(rows):
        return {}
    rows = rows[np.argsort(timeline.block[rows], kind="stable")]
    numbers, first = np.unique(timeline.block[rows], return_index=True)
    starts = np.minimum.reduceat(timeline.start_s[rows], first)
    ends = np.maximum.reduceat(timeline.end_s[rows], first)
    return dict(
        zip(numbers.tolist(), zip(starts.tolist(), ends.tolist(), strict=True), strict=True)
    )


def _write_memory(trace: ChromeTrace, rank: int, stage: int, memory: MemoryTimeline) -> None:
    """All that is allocated, and what of it are activations and temporary."""
    rows = memory.stage == stage
    at_s = memory.at_s[rows].tolist()
    kinds = dict(zip(MEMORY_KINDS, memory.kind_bytes[rows].T, strict=True))
    columns = {
        MEMORY_COUNTER: memory.allocated_bytes[rows],
        "activations (bytes)": kinds["activations"],
        "temporary (bytes)": kinds["temporary"],
    }
    for name, values in columns.items():
        trace.counter_over_time(name, rank, at_s, values.tolist())


def _transfer_arrows(
    job: Job, timeline: Timeline, ranks: Sequence[int], shown: dict[int, _Stage]
) -> Iterator[list[tuple[int, int, float]]]:
    """From what is sent to where it is received, and to the first kernel that needs it."""
    needed = _first_needing(timeline)
    chosen = set(ranks)
    for rank in ranks:
        pipeline = group_of(job, "pp", rank)
        for row, to_stage in zip(*(side.tolist() for side in timeline.sends), strict=True):
            peer = pipeline[to_stage]
            if pipeline[timeline.stage[row]] != rank or peer not in chosen:
                continue
            if timeline.end_s[row] <= timeline.start_s[row]:
                continue
            ends = [
                (rank, *shown[int(timeline.stage[row])].spot(row)),
                (peer, *shown[to_stage].received(row)),
            ]
            if row in needed:
                ends.append((peer, *shown[to_stage].spot(needed[row])))
            yield ends


def _first_needing(timeline: Timeline) -> dict[int, int]:
    """By row of a transfer, the first row of a kernel that waits for it."""
    before, after = timeline.edges
    waits = (timeline.stream[before] == PIPELINE) & (timeline.stream[after] == COMPUTE)
    waits &= timeline.stage[before] != timeline.stage[after]
    waits &= timeline.end_s[after] > timeline.start_s[after]
    return dict(zip(before[waits].tolist(), after[waits].tolist(), strict=True))


def lanes_of(intervals: Sequence[tuple[float, float]]) -> list[int]:
    """A lane for each interval (start, end), such that those of one lane never overlap.

    As few lanes as there are intervals at once; an earlier interval has the lower free lane.
    """
    order = sorted(range(len(intervals)), key=lambda each: intervals[each])
    lanes = [0] * len(intervals)
    running: list[tuple[float, int]] = []
    free: list[int] = []
    for number in order:
        start, end = intervals[number]
        while running and running[0][0] <= start:
            heapq.heappush(free, heapq.heappop(running)[1])
        lane = heapq.heappop(free) if free else len(running)
        lanes[number] = lane
        heapq.heappush(running, (end, lane))
    return lanes


def rendezvous_of(
    job: Job, timeline: Timeline, ranks: Sequence[int]
) -> Iterator[list[tuple[int, int]]]:
    """Each communication that two or more of ``ranks`` take part in, but for what stages send
    each other: (rank, row of the timeline) of each, in order of the ranks.

    Members of one communicator run its communications in one order; what only some of the ranks
    run is left out.
    """
    rows_of = {stage: _by_communicator(timeline, stage) for stage in range(job.recipe.pp)}
    members: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    stage_of = {rank: place_of(job, rank).stage for rank in ranks}
    for rank in ranks:
        for communicator in rows_of[stage_of[rank]]:
            group = _group(job, communicator, rank)
            if group:
                members[communicator, group].append(rank)
    for (communicator, _), present in members.items():
        if len(present) < 2:
            continue
        rows = [rows_of[stage_of[rank]][communicator] for rank in present]
        for together in zip(*rows, strict=False):
            yield list(zip(present, together, strict=True))


def _group(job: Job, communicator: str, rank: int) -> tuple[int, ...]:
    try:
        return group_of(job, communicator, rank)
    except InputError:
        # A communicator of a source that does not name its members.
        return ()


def _by_communicator(timeline: Timeline, stage: int) -> dict[str, list[int]]:
    """Rows of a stage that communicate and take time, by communicator, in the order they ran."""
    found: dict[str, list[int]] = defaultdict(list)
    rows = np.flatnonzero(
        (timeline.stage == stage)
        & (timeline.stream != PIPELINE)
        & (timeline.end_s > timeline.start_s)
    )
    for row in rows[np.argsort(timeline.start_s[rows], kind="stable")].tolist():
        priced = timeline.operations[timeline.operation[row]]
        if priced is not None and isinstance(priced.op, ir.Collective | ir.SendRecv):
            found[priced.op.communicator].append(row)
    return dict(found)


LINKS = ("nvlink", "nic")


@dataclass(frozen=True)
class LinkUse:
    """Bytes per second that one rank sends over one kind of link.

    ``bytes_per_s[i]`` holds from ``at_s[i]`` to ``at_s[i + 1]``; the last one is 0. Over ``nic``
    it is the rank's share of what its node's NICs send, over ``nvlink`` what it sends itself, as
    the prices of communication count them (``CollectivePrice``).
    """

    at_s: Floats
    bytes_per_s: Floats


def link_use(timeline: Timeline, stage: int) -> dict[str, LinkUse]:
    """The use of each of ``LINKS`` by a rank of ``stage``; without links that nothing uses.

    Every communication sends its bytes evenly over the time it takes.
    """
    sent = np.zeros((len(timeline.operations), len(LINKS)))
    for number, priced in enumerate(timeline.operations):
        if priced is not None and priced.communication is not None:
            sent[number] = priced.communication.nvlink_bytes, priced.communication.nic_bytes
    rows = np.flatnonzero(timeline.stage == stage)
    start_s, end_s = timeline.start_s[rows], timeline.end_s[rows]
    found = {}
    for name, sent_bytes in zip(LINKS, sent[timeline.operation[rows]].T, strict=True):
        used = (sent_bytes > 0) & (end_s > start_s)
        if used.any():
            rates = sent_bytes[used] / (end_s[used] - start_s[used])
            found[name] = _sum_of_steps(start_s[used], end_s[used], rates)
    return found


def _sum_of_steps(start_s: Floats, end_s: Floats, rates: Floats) -> LinkUse:
    """The sum of rates that hold from a start to an end each, all of shape (n,)."""
    at_s, place = np.unique(np.concatenate((start_s, end_s)), return_inverse=True)
    change, running = np.zeros(len(at_s)), np.zeros(len(at_s), dtype=np.int64)
    np.add.at(change, place, np.concatenate((rates, -rates)))
    np.add.at(running, place, np.repeat((1, -1), len(rates)))
    # Where nothing runs the sum is 0, not what rounding leaves of it.
    bytes_per_s = np.where(np.cumsum(running) > 0, np.maximum(np.cumsum(change), 0.0), 0.0)
    return LinkUse(at_s, bytes_per_s)
