"""What ends a step, and what a stage holds all through it, for one job's representative stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from trainscout.pruning.bounds.layouts import Layout
from trainscout.simulators.predictor.memory.footprint import process_bytes, scratch_bytes
from trainscout.simulators.predictor.memory.static import static_of
from trainscout.simulators.predictor.memory.unused import flattened_bytes, streamed_bytes
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knob import LAYOUT, STEP_END
from trainscout.simulators.predictor.question.recipe import knobs_entering
from trainscout.simulators.predictor.replay.priced import PricedOp
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.replay.structure import Sharing
from trainscout.simulators.predictor.workload.ir import Block, Collective, Op
from trainscout.simulators.predictor.workload.megatron import shares_embedding
from trainscout.simulators.predictor.workload.parameters import LocalParameters
from trainscout.simulators.predictor.workload.program import Chunk, Stage
from trainscout.simulators.predictor.workload.weights import data_parallel
from trainscout.simulators.predictor.workload.weights.step_end import (
    finish_block,
    optimizer_block,
    update_bytes,
)

# The recipe fields that enter.
END_FIELDS = knobs_entering(STEP_END, LAYOUT)


@dataclass(frozen=True)
class StageEnd:
    """One stage. Seconds: ``reduce_alone_s`` of the reduction behind the passes, ``finish_s``,
    ``optimizer_s`` with the gather behind it. Beside passes: ``last_reduce_s`` of the reduction
    that nothing can hide, ``reduce_s`` of all of one micro-batch's, ``first_gather_s`` that the
    first pass awaits, ``gather_s`` of one forward pass's; ``each_s`` of those that come with every
    micro-batch.

    Where every pass gathers or every backward pass reduces: of the buckets that most of it is for,
    all but one, what they take (``gathering_s``, ``reducing_s``), and how they slow kernels
    (``..._channels``, ``..._bytes_per_s``, as in ``PricedBlock``).
    """

    reduce_alone_s: float
    finish_s: float
    optimizer_s: float
    last_reduce_s: float
    reduce_s: float
    first_gather_s: float
    gather_s: float
    each_s: float = 0.0
    gathering_s: float = 0.0
    gathering_channels: float = 0.0
    gathering_bytes_per_s: float = 0.0
    reducing_s: float = 0.0
    reducing_channels: float = 0.0
    reducing_bytes_per_s: float = 0.0


@dataclass(frozen=True)
class StageHeld:
    """What one stage holds all through a step: ``fixed_bytes`` are parameters, gradients,
    optimizer and scratch, of which passes do without ``absent_bytes`` at most; ``updating_bytes``
    are there while the optimizer runs but for ``flattened_bytes``, further segments;
    ``outside_bytes`` what the allocator does not see."""

    fixed_bytes: int
    absent_bytes: int
    updating_bytes: int
    flattened_bytes: int
    outside_bytes: int

    @classmethod
    def of(cls, job: Job, chunks: Sequence[Chunk], connections: int) -> StageHeld:
        """Of a stage that holds ``chunks``; ``connections`` of NCCL are open."""
        whole = Stage(tuple(chunks), _NOTHING, _NOTHING)
        static = static_of(job, whole)
        fixed = sum(static.kinds.values()) + scratch_bytes(job, whole)
        flattened = flattened_bytes(job, whole)
        updating = update_bytes(whole.parameters, job) - sum(static.absent_at_update)
        return cls(
            fixed,
            sum(static.most_absent),
            # What is flattened is among it.
            fixed + updating - flattened,
            flattened + streamed_bytes(job, whole, static),
            sum(process_bytes(job.gpu, job.cluster, connections).values()),
        )


class EndPricer:
    """Prices what ends steps; every operation once per content and communicator."""

    def __init__(self) -> None:
        self._known: dict[object, PricedOp] = {}

    def seconds(self, block: Block, pricer: Pricer) -> float:
        """The block's time alone: nothing in it overlaps."""
        return self._sums(block, pricer)[0]

    def alone(self, block: Block, pricer: Pricer) -> float:
        """The same for a block that nothing runs before, with the wait for its launches."""
        seconds, launches = self._sums(block, pricer)
        return max(seconds, launches * pricer.host_launch_s)

    def _sums(self, block: Block, pricer: Pricer) -> tuple[float, int]:
        """Seconds and launches of a block."""
        total_s, seconds, launches, each = 0.0, 0.0, 0, 0
        last: Op | None = None
        for op in block.ops:
            # Equal buckets are one object.
            if op is not last:
                last, priced = op, self._one(op, pricer)
                seconds, each = priced.seconds, priced.launches
            total_s += seconds
            launches += each
        return total_s, launches

    def _one(self, op: Op, pricer: Pricer) -> PricedOp:
        # What NCCL is told differs between recipes: the network is part of the key.
        key = (op, *pricer.key((op.communicator,) if isinstance(op, Collective) else ()))
        priced = self._known.get(key)
        if priced is None:
            (priced,) = pricer.operations(Block("one", (op,)))
            self._known[key] = priced
        return priced

    def stage(
        self, job: Job, pricer: Pricer, layout: Layout, stage: int, chunks: Sequence[Chunk]
    ) -> StageEnd:
        """The end of one stage that holds ``chunks``."""
        parameters = Stage(tuple(chunks), _NOTHING, _NOTHING).parameters
        sharing, transfer = Sharing.of(job), data_parallel.Transfer.of(job)
        reduce = partial(data_parallel.reduce_gradients, transfer=transfer)
        gather = partial(data_parallel.gather_parameters, transfer=transfer)
        shares = shares_embedding(job, stage)
        finish = finish_block(job, parameters, layout.layers(stage), shares_embedding=shares)
        optimizer_s = self.alone(optimizer_block(job, parameters, layout.layers(stage)), pricer)
        begins, ends = sharing.ends
        if ends:
            optimizer_s += self.alone(gather(parameters), pricer)
        reduce_alone_s = self.alone(reduce(parameters), pricer) if begins else 0.0
        last_s = all_s = first_s = gather_s = each_s = 0.0
        every: dict[str, float] = {}
        if sharing.reduce_overlaps or sharing.gather_overlaps:
            buckets = [_buckets(chunk, data_parallel.bucket_parameters(job)) for chunk in chunks]
            # The first chunk's first layers meet communication first and last.
            outer = buckets[0][-1][0] if buckets[0] else None
            counts: Counter[LocalParameters] = Counter()
            for bucket, count in (each for of_chunk in buckets for each in of_chunk):
                counts[bucket] += count
            if sharing.reduce_overlaps:
                name = "reducing" if sharing.reduce_every else ""
                last_s, all_s, more = self._overlapping_passes(name, reduce, outer, counts, pricer)
                every |= more
                each_s = all_s * sharing.reduce_every
            if sharing.gather_overlaps:
                name = "gathering" if sharing.gather_again else ""
                first_s, gather_s, more = self._overlapping_passes(
                    name, gather, outer, counts, pricer
                )
                # A frozen model that runs first may hide it.
                first_s *= not (chunks[0].runs and chunks[0].runs[0].reference)
                every |= more
                # What forward passes leave gathered is not gathered for backward ones.
                kept = (run.parameters for chunk in chunks for run in chunk.runs if run.kept)
                again_s = gather_s - sum(self.seconds(gather(each), pricer) for each in kept)
                each_s += gather_s * sharing.gather_every + again_s * sharing.gather_again
        finish_s = self.alone(finish, pricer)
        passes_s = last_s, all_s, first_s, gather_s, each_s
        return StageEnd(reduce_alone_s, finish_s, optimizer_s, *passes_s, **every)

    def _overlapping_passes(
        self,
        name: str,
        make: Callable[[LocalParameters], Block],
        outer: LocalParameters | None,
        counts: Counter[LocalParameters],
        pricer: Pricer,
    ) -> tuple[float, float, dict[str, float]]:
        """Seconds of the ``outer`` bucket and of all; where every pass has them, the fields of
        ``StageEnd`` that begin with ``name``: of the buckets that most of the time is for."""
        seconds = {bucket: self.seconds(make(bucket), pricer) for bucket in counts}
        all_s = sum(seconds[bucket] * count for bucket, count in counts.items())
        every: dict[str, float] = {}
        if name:
            most = max(seconds, key=lambda bucket: seconds[bucket] * counts[bucket])
            priced = pricer.block(make(most))
            every = {
                f"{name}_s": priced.seconds * (counts[most] - 1),
                f"{name}_channels": priced.channels,
                f"{name}_bytes_per_s": priced.wire_bytes_per_s,
            }
        return 0.0 if outer is None else seconds[outer], all_s, every


_NOTHING = Block("nothing", ())


def _buckets(chunk: Chunk, most: int | None) -> list[tuple[LocalParameters, int]]:
    """Parameters of a chunk's buckets in the order of its backward pass, as ``PassPricer`` cuts
    them, and how many such follow each other; a reference's gathers come on top of what is
    bounded."""
    buckets: list[tuple[LocalParameters, int]] = []
    filling = LocalParameters()
    started = False
    for run in reversed([run for run in chunk.runs if not run.reference]):
        left, layer = run.count, run.parameters
        while left:
            missing = 0 if most is None else most - filling.total
            if missing > layer.total * left:
                filling, started, left = filling + layer.times(left), True, 0
                continue
            closing = -(-missing // layer.total) if missing > 0 else 1
            filling, left = filling + layer.times(closing), left - closing
            # A bucket that begins with this run's layers is followed by others like it.
            alike = 0 if started else left // closing
            buckets.append((filling, 1 + alike))
            left -= alike * closing
            filling, started = LocalParameters(), False
    return [*buckets, (filling, 1)] if started else buckets
