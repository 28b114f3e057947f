"""Prices and sizes of the blocks that chunks are made of, by what they depend on.

A chunk is a row of *slots*: the embedding, the layers of each kind with and without full
recomputation, and what ends the model. Every slot's block is built and priced by
the code that the replay itself uses, once for each combination of the fields that enter it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainscout.pruning.bounds.layouts import ChunkKind
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.workload.ir import Block
from trainscout.simulators.predictor.workload.megatron import ChunkMode, ChunkShape, build_chunk
from trainscout.simulators.predictor.workload.program import Chunk, Run
from trainscout.simulators.predictor.workload.shard import Shard

EMBEDDING = 0

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Slots:
    """One combination's blocks, a row of slots; every array has shape (2, slots), forward first.

    ``saved`` bytes stay after the block (the backward's are negative), ``peak`` is the most it
    holds. ``runs`` are the slots' runs.
    """

    saved: Ints
    peak: Ints
    runs: tuple[Run | None, ...]

    @classmethod
    def of(cls, shard: Shard, mode: ChunkMode, *, some_layers: bool) -> Slots:
        """The slots of jobs whose blocks are these.

        Args:
            shard, mode: what blocks depend on. Where a layer is offloaded, all of its kind are
                taken to be, which holds least, and no copy is waited for.
            some_layers: full recomputation leaves layers out, whose blocks are wanted too.
        """
        kinds = len(shard.model.layer_kinds)
        full = mode.recompute == "full"
        shape = ChunkShape((1,) * kinds, first=True, last=True)
        chunk = build_chunk(shard, mode, shape)
        layers, ends = slice(1, 1 + kinds), chunk.runs[1 + kinds :]
        runs: list[Run | None] = [chunk.runs[EMBEDDING], *[None] * (2 * kinds), *ends]
        whole, plain = slice(1, 1 + 2 * kinds, 2), slice(2, 2 + 2 * kinds, 2)
        runs[whole if full else plain] = chunk.runs[layers]
        if full and some_layers:
            once = build_chunk(shard, replace(mode, recompute="none"), shape)
            runs[plain] = once.runs[layers]
        sizes = (2, len(runs))
        saved, peak = np.zeros(sizes, dtype=np.int64), np.zeros(sizes, dtype=np.int64)
        for way, slot, block in _blocks(runs):
            saved[way, slot], peak[way, slot] = block.saved_bytes, block.peak_bytes
        return cls(saved, peak, tuple(runs))

    @property
    def blocks(self) -> Iterator[Block]:
        return (block for _, _, block in _blocks(self.runs))

    def chunk(self, counts: Ints) -> Chunk:
        """The chunk with so many of each slot, as ``slot_counts`` has them."""
        runs = zip(self.runs, counts.tolist(), strict=True)
        return Chunk(tuple(replace(run, count=n) for run, n in runs if run is not None and n))


@dataclass(frozen=True)
class SlotPrices:
    """``seconds`` and ``host_s`` of one combination's blocks as in ``PricedBlock``, shape
    (2, slots), forward first."""

    seconds: Floats
    host_s: Floats

    @classmethod
    def of(cls, slots: Slots, pricer: Pricer) -> SlotPrices:
        shape = (2, len(slots.runs))
        seconds, host_s = np.zeros(shape), np.zeros(shape)
        for way, slot, block in _blocks(slots.runs):
            priced = pricer.block(block)
            seconds[way, slot], host_s[way, slot] = priced.seconds, priced.host_s
        return cls(seconds, host_s)


def _blocks(runs: Sequence[Run | None]) -> Iterator[tuple[int, int, Block]]:
    """Every block with its way (0 forward, 1 backward) and slot."""
    for slot, run in enumerate(runs):
        for way, block in enumerate(() if run is None else (run.forward, run.backward)):
            yield way, slot, block


def slot_counts(
    kind: ChunkKind,
    runs: Sequence[Run | None],
    full: NDArray[np.bool_],
    layers: Ints,
    taper: Ints,
) -> Ints:
    """How many of each slot a chunk holds, shape (rows, slots).

    Args:
        kind: the chunk.
        runs: the slots' runs; what ends the model comes as often as they say.
        full: whether a row recomputes whole layers.
        layers: how many of a chunk's layers it then recomputes; -1 for all.
        taper: how many fewer on each stage than on the one before.
    """
    counts = np.zeros((len(full), len(runs)), dtype=np.int64)
    # As ``build_chunk``: the first layers of a chunk are recomputed, those of a kind together.
    left = np.where(layers < 0, kind.most, layers) - kind.stage * taper
    left = np.maximum(left, 0) * full
    counts[:, EMBEDDING] = kind.first
    for number, count in enumerate(kind.layers):
        whole = np.minimum(count, left)
        counts[:, 1 + 2 * number], counts[:, 2 + 2 * number] = whole, count - whole
        left = left - whole
    ends = 1 + 2 * len(kind.layers)
    counts[:, ends:] = [kind.last * run.count for run in runs[ends:] if run is not None]
    return counts


@dataclass(frozen=True)
class PassSizes:
    """Passes over one kind of chunk in many recipes, shape (rows,) each: bytes kept, and the most
    a forward or backward pass holds."""

    saved: Ints
    forward_peak: Ints
    backward_peak: Ints

    @classmethod
    def of(cls, saved: Ints, peak: Ints, counts: Ints) -> PassSizes:
        """The passes of chunks of ``counts``, shape (rows, slots); ``saved`` and ``peak`` of the
        slots, shape (2, rows, slots)."""
        return cls(
            (counts * saved[0]).sum(axis=1),
            _forward_peak(saved[0], peak[0], counts),
            _backward_peak(saved[1], peak[1], counts),
        )


def pass_s(seconds: Floats, host_s: Floats, counts: Ints, way: int) -> Floats:
    """Seconds of passes with waits for the host, as ``passes.sum_blocks``: the device's time, and
    how far the host is ever behind it.

    Args:
        seconds, host_s: of the slots, shape (2, rows, slots).
        counts: of each slot, shape (rows, slots).
        way: 0 forward, 1 backward.
    """
    order = slice(None, None, 1 if way == 0 else -1)
    device = (counts * seconds[way])[:, order].cumsum(axis=1)
    host = (counts * host_s[way])[:, order].cumsum(axis=1)
    behind: Floats = np.maximum(0.0, (host - device).max(axis=1))
    total: Floats = device[:, -1] + behind
    return total


def _forward_peak(saved: Ints, peak: Ints, counts: Ints) -> Ints:
    """As ``footprint``: the last repetition of each run on top of what is kept by then."""
    live = (counts * saved).cumsum(axis=1)
    most: Ints = np.where(counts > 0, live - saved + peak, 0).max(axis=1)
    return most


def _backward_peak(saved: Ints, peak: Ints, counts: Ints) -> Ints:
    """The first repetition of each run, what runs behind it kept being free by then."""
    freed = (counts * saved)[:, ::-1].cumsum(axis=1)[:, ::-1] - counts * saved
    most: Ints = np.where(counts > 0, freed + peak, 0).max(axis=1)
    return most
