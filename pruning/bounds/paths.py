"""Chains of passes that no pipeline schedule can shorten.

A step is a graph: each stage runs its passes one after another in the schedule's order, a forward
pass waits for the same micro-batch on the stage before, a backward pass for it on the stage
after. The time of *any* chain through that graph is a lower bound on the step, and a chain is
known by how many passes of each kind and how many transfers it holds: a vector of counts. Bounds
of many recipes are then one product of a matrix of counts with their passes' seconds.

The chains here run down the pipeline to some stage, through that stage's own passes, and back up
to the stage where the step ends. Before its first backward pass and after its last forward pass a
stage may wait for others, so each half has three variants: stay on the stage; leave it for the
stages below and come back; follow one micro-batch through all chunks.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.pruning.bounds.layouts import Layout
from trainscout.simulators.predictor.question.schedule_file import is_file
from trainscout.simulators.predictor.question.schedules import crossed, routes, schedule_kind
from trainscout.simulators.predictor.workload.schedules.schedule import (
    micro_batches_in_turn,
    warmup_passes,
)

Counts = NDArray[np.int64]
# Chains through more stages than this (and those that differ) bring nothing measurable.
_STAGES = 6
CROSSING, LOCAL = -2, -1


# What a chain ends with: the last pass of a stage; where the backward pass of its last chunk for
# the last micro-batch could begin; and both again for chains that begin when the last chunk of the
# stage has run forward for the first micro-batch, which no parameter gather can be later than.
KINDS = 4


@dataclass(frozen=True)
class Paths:
    """Chains of one layout, schedule and number of micro-batches.

    Columns of ``chains``, shape (chains, columns), count, in order: forward passes by kind of
    chunk, backward passes by kind, transfers between NVLink domains, and inside one.
    ``starts[i * KINDS + kind]`` is the first chain of that kind of stage ``layout.stages[i]``;
    the others follow it.
    """

    chains: Counts
    starts: Counts

    def longest_s(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of the longest chains, shape (rows, stages, kinds), from those of what the
        columns count, shape (rows, columns)."""
        total = np.zeros((len(seconds), len(self.chains)))
        # Column by column and not as one product of matrices, which adds up in an order that
        # depends on how many rows there are: bounds of some rows are those of all.
        for column, counts in zip(seconds.T, self.chains.T, strict=True):
            if counts.any():
                total += column[:, None] * counts
        longest = np.maximum.reduceat(total, self.starts, axis=1)
        return longest.reshape(len(seconds), -1, KINDS)


def find_paths(layout: Layout, schedule: str, micro_batches: int, *, blocking: bool) -> Paths:
    """The chains of one pipeline.

    Args:
        layout: stages, chunks and their kinds.
        schedule: of the pipeline.
        micro_batches: per replica and step.
        blocking: transfers are part of the sender's pass; else they only delay the receiver.
    """
    if schedule_kind(schedule).splits_backward or is_file(schedule):
        return _any_order_paths(layout, schedule, micro_batches)
    return _Chains(layout, schedule, micro_batches, blocking).paths()


def _any_order_paths(layout: Layout, schedule: str, micro_batches: int) -> Paths:
    """Chains of whatever order, those that split backward passes and those of files: through all
    passes of a stage, behind the first micro-batch's way to it where stages wait for each other.
    Nothing is said of when gradients are complete."""
    kind = schedule_kind(schedule)
    kinds, half = len(layout.kinds), 1 + kind.both_ways
    unit = np.eye(2 * kinds + 2, dtype=np.int64)
    ways = routes(schedule, layout.pp, layout.vpp)
    found: list[Counts] = []
    for end in layout.stages:
        both = np.array(layout.kind_of[end])
        own = (unit[both] + unit[kinds + both]).sum(axis=0) * micro_batches // half
        heads = []
        for route in ways:
            head = np.zeros_like(unit[0])
            for (stage, chunk), (after, _) in itertools.pairwise(route):
                if stage == end:
                    break
                head = head + unit[layout.kind_of[stage][chunk]]
                head = head + unit[CROSSING if layout.crosses[crossed(stage, after)] else LOCAL]
            heads.append(head)
        # A stage begins with whichever micro-batch comes first: what both ways have is sure.
        head = np.minimum.reduce(heads) * (not kind.unsynchronised)
        nothing = np.zeros((1, len(unit[0])), dtype=np.int64)
        found += [(own + head)[None], nothing, nothing, nothing]
    return Paths(np.concatenate(found), np.arange(len(found)))


class _Chains:
    def __init__(self, layout: Layout, schedule: str, micro_batches: int, blocking: bool) -> None:
        self.layout, self.schedule, self.m = layout, schedule, micro_batches
        pp, vpp, kinds = layout.pp, layout.vpp, len(layout.kinds)
        kind = np.array(layout.kind_of)
        unit = np.eye(2 * kinds + 2, dtype=np.int64)
        link = unit[[CROSSING if crosses else LOCAL for crosses in layout.crosses]]
        link = np.zeros_like(link) if pp == 1 else link
        self.forward, self.backward = unit[kind], unit[kinds + kind]
        self.lag = np.zeros_like(link) if blocking else link
        if blocking:
            # As in ``Assembler.sent_s``: the model's own ends send nothing.
            self.forward = self.forward + link[:, None]
            self.forward[-1, -1] -= link[-1]
            self.backward = self.backward + np.roll(link, 1, axis=0)[:, None]
            self.backward[0, 0] -= link[-1]
        zero = np.zeros((1, unit.shape[1]), dtype=np.int64)
        # Sums over the stages before one (down the first chunk; up it), exclusive.
        down = self.forward[:, 0] + self.lag
        up = self.backward[:, 0] + self.lag
        self.head = np.concatenate([zero, np.cumsum(down, axis=0)])[:pp]
        self.tail = np.concatenate([zero, np.cumsum(up, axis=0)])[:pp]
        # Over the stages behind one, on the last chunk.
        self.fall = _behind(self.forward[:, -1], self.lag)
        self.rise = _behind(self.backward[:, -1], self.lag)
        self.group = micro_batches_in_turn(schedule, pp, micro_batches)
        # Passes until the last chunk's first; and from its last backward one on.
        self.reach = (vpp - 1) * self.group + 1
        lags = vpp * self.lag[: pp - 1].sum(axis=0) + (vpp - 1) * self.lag[-1]
        self.all_forward = self.forward.sum(axis=(0, 1)) + lags
        self.all_backward = self.backward.sum(axis=(0, 1)) + lags

    def paths(self) -> Paths:
        stages = self.layout.spread_stages(_STAGES)
        starts = {stage: self.starts(stage) for stage in stages}
        through = {stage: self.through(stage, starts[stage]) for stage in stages}
        found: list[Counts] = []
        for end in self.layout.stages:
            gathered = self.gathered(end)
            below = np.concatenate([through[stage] for stage in stages if stage >= end])
            found += [
                _longest(below) - self.tail[end],
                self.to_last_backward(end, starts[end]),
                self.through(end, gathered) - self.tail[end],
                self.to_last_backward(end, gathered),
            ]
        counts = [len(chains) for chains in found]
        return Paths(np.concatenate(found), np.cumsum([0, *counts[:-1]]))

    def first(self, passes: Counts, count: int) -> Counts:
        """The first ``count`` passes of one direction on a stage; forward order."""
        return _of_chunks(count, self.group, self.layout.vpp) @ passes

    def last(self, passes: Counts, count: int) -> Counts:
        """The last ``count`` backward passes: chunks in reverse."""
        total = self.layout.vpp * self.m
        before, all_of_them = (
            _of_chunks(some, self.group, self.layout.vpp) for some in (total - count, total)
        )
        return (all_of_them - before)[::-1] @ passes

    def ahead(self, stage: int) -> int:
        """Forward passes of a stage before its first backward pass."""
        pp, vpp, m = self.layout.pp, self.layout.vpp, self.m
        return min(warmup_passes(self.schedule, stage, pp, vpp, m) + 1, vpp * m)

    def round_trip(self, stage: int) -> Counts:
        """From a stage's last chunk down to the model's end and back up to it."""
        trip: Counts = self.fall[stage] + self.rise[stage]
        return trip

    def starts(self, stage: int) -> list[Counts]:
        """Chains from the step's begin to a stage's first backward pass."""
        forward = self.forward[stage]
        return [
            self.head[stage] + self.first(forward, self.ahead(stage)),
            self.head[stage] + self.first(forward, self.reach) + self.round_trip(stage),
            self.all_forward + self.rise[stage],
        ]

    def gathered(self, stage: int) -> list[Counts]:
        """Chains to it from where the last chunk has run forward once."""
        forward = self.forward[stage]
        stay = self.first(forward, self.ahead(stage)) - self.first(forward, self.reach)
        return [stay, self.round_trip(stage)]

    def joined(self, stage: int, starts: list[Counts], ends: list[Counts]) -> Counts:
        """Chains from starts, through the passes between a stage's first backward and last
        forward one, to ends."""
        ahead, total = self.ahead(stage), self.layout.vpp * self.m
        if ahead >= total:
            # All forward passes first: a chain meets only one of both waits.
            return np.array([start + ends[0] for start in starts] + [starts[0] + e for e in ends])
        forward, backward = self.forward[stage], self.backward[stage]
        middle = self.m * (forward + backward).sum(axis=0)
        middle = middle - self.first(forward, ahead) - self.last(backward, ahead)
        return np.array([start + middle + end for start in starts for end in ends])

    def through(self, stage: int, starts: list[Counts]) -> Counts:
        """Chains through a stage to the last pass of the first one; to that of another, they end
        earlier by what lies between (``tail``)."""
        backward, back = self.backward[stage], self.tail[stage]
        ends = [
            self.last(backward, self.ahead(stage)) + back,
            self.round_trip(stage) + self.last(backward, self.reach) + back,
            self.fall[stage] + self.all_backward,
        ]
        return self.joined(stage, starts, ends)

    def to_last_backward(self, stage: int, starts: list[Counts]) -> Counts:
        """Chains to where the last chunk's last backward pass could begin."""
        backward = self.backward[stage]
        stay = self.last(backward, self.ahead(stage)) - self.last(backward, self.reach)
        return self.joined(stage, starts, [stay, self.round_trip(stage)])


@functools.lru_cache(maxsize=4096)
def _of_chunks(count: int, group: int, vpp: int) -> Counts:
    """How many of the first ``count`` forward passes are of each chunk: ``group`` micro-batches
    pass one before its next."""
    turns, begun = divmod(count, group * vpp)
    chunks: Counts = np.arange(begun, begun - group * vpp, -group)
    return turns * group + np.minimum(np.maximum(chunks, 0), group)


def _behind(passes: Counts, lag: Counts) -> Counts:
    """For each stage the sum over those behind it, with the transfers from one to the next."""
    with_lag = passes[1:] + lag[:-1]
    sums = np.cumsum(with_lag[::-1], axis=0)[::-1]
    return np.concatenate([sums, np.zeros_like(passes[:1])])


def _longest(chains: Counts) -> Counts:
    """Without chains that another one holds; of equal ones the first."""
    held = (chains[:, None] <= chains[None]).all(axis=2)
    by_longer = held & ~held.T
    by_earlier = np.tril(held & held.T, -1)
    return chains[~(by_longer | by_earlier).any(axis=1)]
