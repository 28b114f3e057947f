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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pruning.bounds.layouts import Layout
from simulators.workload.schedule import warmup_passes

Counts = NDArray[np.int64]
# Chains through more stages than this (and those that differ) bring nothing measurable.
_STAGES = 6
CROSSING, LOCAL = -2, -1


@dataclass(frozen=True)
class Paths:
    """Chains of one layout, schedule and number of micro-batches.

    Columns count, in order: forward passes by kind of chunk, backward passes by kind, transfers
    between NVLink domains, and inside one. ``to_end[i]``, shape (chains, columns), end with the
    last pass of stage ``layout.stages[i]``; ``to_last_backward[i]`` where the backward pass of
    its last chunk for the last micro-batch could begin.
    """

    to_end: tuple[Counts, ...]
    to_last_backward: tuple[Counts, ...]


def find_paths(layout: Layout, schedule: str, micro_batches: int, *, blocking: bool) -> Paths:
    """The chains of one pipeline.

    Args:
        layout: stages, chunks and their kinds.
        schedule: ``1f1b`` or ``gpipe``.
        micro_batches: per replica and step.
        blocking: transfers are part of the sender's pass; else they only delay the receiver.
    """
    return _Chains(layout, schedule, micro_batches, blocking).paths()


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
        lags = vpp * self.lag[: pp - 1].sum(axis=0) + (vpp - 1) * self.lag[-1]
        self.all_forward = self.forward.sum(axis=(0, 1)) + lags
        self.all_backward = self.backward.sum(axis=(0, 1)) + lags

    def paths(self) -> Paths:
        stages = self.layout.spread_stages(_STAGES)
        to_end, to_last = [], []
        for end in self.layout.stages:
            through = [self.through(stage, end) for stage in stages if stage >= end]
            to_end.append(_longest(np.concatenate(through)))
            to_last.append(_longest(self.to_last_backward(end)))
        return Paths(tuple(to_end), tuple(to_last))

    def first(self, passes: Counts, count: int) -> Counts:
        """The first ``count`` passes of one direction on a stage; forward order."""
        pp, vpp = self.layout.pp, self.layout.vpp
        chunks = np.arange(count) % (pp * vpp) // pp
        return np.bincount(chunks, minlength=vpp) @ passes

    def last(self, passes: Counts, count: int) -> Counts:
        """The last ``count`` backward passes: chunks in reverse."""
        pp, vpp = self.layout.pp, self.layout.vpp
        total = vpp * self.m
        chunks = vpp - 1 - np.arange(total - count, total) % (pp * vpp) // pp
        return np.bincount(chunks, minlength=vpp) @ passes

    def halves(self, stage: int) -> tuple[list[Counts], Counts, Counts, bool]:
        """Chains to a stage's first backward pass; its passes from there to its last forward
        pass; those after; and whether that forward pass follows that backward pass."""
        pp, vpp = self.layout.pp, self.layout.vpp
        total = vpp * self.m
        warmup = warmup_passes(self.schedule, stage, pp, vpp, self.m)
        ahead = min(warmup + 1, total)
        forward, backward = self.forward[stage], self.backward[stage]
        before, after = self.first(forward, ahead), self.last(backward, ahead)
        middle = self.m * (forward + backward).sum(axis=0) - before - after
        chunks = (vpp - 1) * pp + 1
        starts = [
            self.head[stage] + before,
            self.head[stage] + self.first(forward, chunks) + self.fall[stage] + self.rise[stage],
            self.all_forward + self.rise[stage],
        ]
        return starts, middle, after, total - warmup >= 2

    def through(self, stage: int, end: int) -> Counts:
        """Chains through all of a stage's passes, or what waits cut out, to the end."""
        pp, vpp = self.layout.pp, self.layout.vpp
        starts, middle, after, overlapping = self.halves(stage)
        back = self.tail[stage] - self.tail[end]
        ends = [
            after + back,
            self.fall[stage]
            + self.rise[stage]
            + self.last(self.backward[stage], (vpp - 1) * pp + 1)
            + back,
            self.fall[stage] + self.all_backward - self.tail[end],
        ]
        if overlapping:
            return np.array([start + middle + finish for start in starts for finish in ends])
        # All forward passes first: only one of both waits can be on a chain.
        return np.array([start + ends[0] for start in starts] + [starts[0] + e for e in ends])

    def to_last_backward(self, stage: int) -> Counts:
        pp, vpp = self.layout.pp, self.layout.vpp
        starts, middle, after, overlapping = self.halves(stage)
        rest = self.last(self.backward[stage], (vpp - 1) * pp + 1)
        ends = [after - rest, self.fall[stage] + self.rise[stage]]
        if overlapping:
            return np.array([start + middle + finish for start in starts for finish in ends])
        return np.array([start + ends[0] for start in starts] + [starts[0] + e for e in ends])


def _behind(passes: Counts, lag: Counts) -> Counts:
    """For each stage the sum over those behind it, with the transfers from one to the next."""
    with_lag = passes[1:] + lag[:-1]
    sums = np.cumsum(with_lag[::-1], axis=0)[::-1]
    return np.concatenate([sums, np.zeros_like(passes[:1])])


def _longest(chains: Counts) -> Counts:
    """Without chains that another one holds."""
    chains = np.unique(chains, axis=0)
    kept = [
        row
        for row in range(len(chains))
        if np.count_nonzero(np.all(chains[row] <= chains, axis=1)) == 1
    ]
    longest: Counts = chains[kept]
    return longest
