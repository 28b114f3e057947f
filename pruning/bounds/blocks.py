"""Prices and sizes of the blocks that chunks are made of, by what they depend on.

A chunk is a row of *slots*: the embedding, the layers of each kind with and without full
recomputation, and what ends the model. Every slot's block is built and priced by
the code that the replay itself uses, once for each combination of the fields that enter it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainscout.pruning.bounds.layouts import ChunkKind
from trainscout.simulators.predictor.interference.overlap import KERNEL_CLASSES
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.workload.ir import Block
from trainscout.simulators.predictor.workload.megatron import ChunkMode, ChunkShape, build_chunk
from trainscout.simulators.predictor.workload.program import Chunk, Run
from trainscout.simulators.predictor.workload.schedules.passes import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    KINDS,
    WEIGHT_GRADIENT,
    backward_block,
)
from trainscout.simulators.predictor.workload.shard import Shard

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Slots:
    """One combination's blocks, a row of slots; every array has shape (2, slots), forward first.

    ``saved`` bytes stay after the block (the backward's are negative), ``peak`` is the most it
    holds. ``runs`` are the slots' runs. ``own``: which slots are of the trained model, embedding
    first, and not of a pass of a frozen one, ``frozen``, embedding first and head last.
    ``follows``: that has as many layers in a chunk as the trained one.
    """

    saved: Ints
    peak: Ints
    runs: tuple[Run | None, ...]
    own: tuple[int, ...]
    frozen: tuple[tuple[int, ...], ...]
    follows: bool

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
        trained = [run for run in chunk.runs if not run.reference]
        ahead = list(itertools.takewhile(lambda run: run.reference, chunk.runs))
        behind = chunk.runs[len(ahead) + len(trained) :]
        layers, ends = slice(1, 1 + kinds), trained[1 + kinds :]
        runs: list[Run | None] = [trained[0], *[None] * (2 * kinds), *ends]
        whole, plain = slice(1, 1 + 2 * kinds, 2), slice(2, 2 + 2 * kinds, 2)
        runs[whole if full else plain] = trained[layers]
        if full and some_layers:
            once = build_chunk(shard, replace(mode, recompute="none"), shape)
            runs[plain] = [run for run in once.runs if not run.reference][layers]
        own = range(len(ahead), len(ahead) + len(runs))
        # In their order in a pass: how far the host is ever behind depends on it.
        runs = [*ahead, *runs, *behind]
        frozen = [place for place in range(len(runs)) if place not in own]
        sizes = (2, len(runs))
        saved, peak = np.zeros(sizes, dtype=np.int64), np.zeros(sizes, dtype=np.int64)
        for way, slot, block in _blocks(runs):
            saved[way, slot], peak[way, slot] = block.saved_bytes, block.peak_bytes
        follows = all(each.layers is None for each in mode.references)
        size = max(1, len(frozen) // max(1, len(mode.references)))
        passes = tuple(tuple(frozen[at : at + size]) for at in range(0, len(frozen), size))
        return cls(saved, peak, tuple(runs), tuple(own), passes, follows)

    @functools.cached_property
    def communicators(self) -> tuple[str, ...]:
        """Names of those that the blocks use."""
        names = (name for _, _, block in _blocks(self.runs) for name in block.communicators)
        return tuple(dict.fromkeys(names))

    @functools.cached_property
    def run_counts(self) -> tuple[int, ...]:
        """How often each slot's run comes."""
        return tuple(0 if run is None else run.count for run in self.runs)

    def parts(self, *, halves: bool) -> Iterator[tuple[int, int, Block]]:
        """What passes run of every slot, with the kind of pass and the slot: whole passes, or with
        ``halves`` all kinds."""
        for way, slot, block in _blocks(self.runs):
            yield way, slot, block
            if halves and way == BACKWARD:
                for kind in (INPUT_GRADIENT, WEIGHT_GRADIENT):
                    yield kind, slot, backward_block(block, kind)

    def chunk(self, counts: Ints) -> Chunk:
        """The chunk with so many of each slot, as ``slot_counts`` has them."""
        runs = zip(self.runs, counts.tolist(), strict=True)
        return Chunk(tuple(replace(run, count=n) for run, n in runs if run is not None and n))


@dataclass(frozen=True)
class SlotPrices:
    """``seconds`` and ``host_s`` of one combination's blocks as in ``PricedBlock``, shape
    (kinds, slots): of whole passes, or of all kinds of ``schedules.passes``; of whole passes
    ``kernel_s`` for each second of the block, shape (2, slots, 2, kernel classes)."""

    seconds: Floats
    host_s: Floats
    kernel_s: Floats

    @classmethod
    def of(cls, slots: Slots, pricer: Pricer, *, halves: bool) -> SlotPrices:
        shape = (KINDS if halves else 2, len(slots.runs))
        seconds, host_s = np.zeros(shape), np.zeros(shape)
        kernel_s = np.zeros((2, len(slots.runs), 2, len(KERNEL_CLASSES)))
        for kind, slot, part in slots.parts(halves=halves):
            priced = pricer.block(part)
            seconds[kind, slot], host_s[kind, slot] = priced.seconds, priced.host_s
            if kind <= BACKWARD and priced.seconds:
                kernel_s[kind, slot] = priced.kernel_s / priced.seconds
        return cls(seconds, host_s, kernel_s)


def _blocks(runs: Sequence[Run | None]) -> Iterator[tuple[int, int, Block]]:
    """Every block with its way (0 forward, 1 backward) and slot."""
    for slot, run in enumerate(runs):
        for way, block in enumerate(() if run is None else (run.forward, run.backward)):
            yield way, slot, block


def slot_counts(
    kind: ChunkKind, slots: Slots, runs: Ints, full: NDArray[np.bool_], layers: Ints, taper: Ints
) -> Ints:
    """How many of each slot a chunk holds, shape (rows, slots).

    Args:
        kind: the chunk.
        slots: of such chunks.
        runs: how often each of a row's runs comes, shape (rows, slots), of what ends the model
            and of frozen layers that do not follow the trained ones.
        full: whether a row recomputes whole layers.
        layers: how many of a chunk's layers it then recomputes; -1 for all.
        taper: how many fewer on each stage than on the one before.
    """
    counts = np.zeros((len(full), len(slots.runs)), dtype=np.int64)
    embedding, *own = slots.own
    # As ``build_chunk``: the first layers of a chunk are recomputed, those of a kind together.
    left = np.where(layers < 0, kind.most, layers) - kind.stage * taper
    left = np.maximum(left, 0) * full
    counts[:, embedding] = kind.first
    for number, count in enumerate(kind.layers):
        whole = np.minimum(count, left)
        counts[:, own[2 * number]], counts[:, own[2 * number + 1]] = whole, count - whole
        left = left - whole
    for place in own[2 * len(kind.layers) :]:
        counts[:, place] = kind.last * runs[:, place]
    for first, *between, last in slots.frozen:
        counts[:, first], counts[:, last] = kind.first, kind.last
        counts[:, between] = kind.layers if slots.follows else runs[:, between]
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


def backward_s(seconds: Floats, host_s: Floats, counts: Ints) -> Floats:
    """As ``pass_s``, of backward passes; where ``seconds`` are of all kinds of passes, of the
    shorter of a whole one and both halves, as some schedules have both."""
    whole = pass_s(seconds, host_s, counts, BACKWARD)
    if len(seconds) == BACKWARD + 1:
        return whole
    halves = (pass_s(seconds, host_s, counts, half) for half in (INPUT_GRADIENT, WEIGHT_GRADIENT))
    return np.minimum(whole, sum(halves))


def pass_s(seconds: Floats, host_s: Floats, counts: Ints, way: int) -> Floats:
    """Seconds of passes with waits for the host, as ``passes.sum_blocks``: the device's time, and
    how far the host is ever behind it.

    Args:
        seconds, host_s: of the slots, shape (kinds, rows, slots).
        counts: of each slot, shape (rows, slots).
        way: the kind of pass.
    """
    order = slice(None, None, 1 if way == FORWARD else -1)
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
