"""What a workload source delivers: every pipeline stage's blocks, buckets and step end.

Data-, tensor- and context-parallel peers of a stage run the same program by construction:
none of their coordinates enters it. Stages and chunks with equal content share the same
objects, so whatever prices them does so once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .ir import Block, Communicator, Digest, Gemm, GroupedGemm
from .parameters import LocalParameters


@dataclass(frozen=True)
class Run:
    """``count`` equal consecutive pieces of the model and the parameters of one of them.

    ``reference``: of a frozen model that has no backward pass. ``borrows``: its parameters are
    those of other runs, which hold them. ``kept``: gathered in the forward pass, they stay until
    the backward pass. ``whole``: so many others are on every rank, and never gathered.
    """

    forward: Block
    backward: Block
    count: int
    parameters: LocalParameters
    reference: bool = False
    borrows: bool = False
    kept: bool = False
    whole: int = 0

    @cached_property
    def digest(self) -> tuple[object, ...]:
        kind = (self.count, self.parameters, self.reference, self.borrows, self.kept, self.whole)
        return self.forward.digest, self.backward.digest, *kind

    @property
    def held(self) -> LocalParameters:
        """Parameters that one piece adds to what a rank holds."""
        return LocalParameters() if self.borrows else self.parameters

    @property
    def is_layer(self) -> bool:
        """Whether it is of the model's layers, and not of its ends."""
        return self.forward.name.endswith("layer_forward")


class Held(NamedTuple):
    """``bytes`` that a pass holds beyond what was live before it, when the gradients of ``made``
    parameters are there; ``in_layer``: where one of the model's layers runs. Of that layer's
    parameters ``own`` have gradients, not reduced yet; ``reduces``: those of a layer are being
    reduced."""

    bytes: int
    made: int
    in_layer: bool
    own: int = 0
    reduces: bool = False


@dataclass(frozen=True)
class Chunk:
    """One model chunk of a stage, as runs in forward order. ``copied_bytes`` of activations a
    forward pass copies to the host, and a backward pass back, with ``gradient_bytes`` besides."""

    runs: tuple[Run, ...]
    copied_bytes: int = 0
    gradient_bytes: int = 0

    @cached_property
    def digest(self) -> Digest:
        return Digest((*(run.digest for run in self.runs), self.copied_bytes, self.gradient_bytes))

    @cached_property
    def parameters(self) -> LocalParameters:
        return sum((run.held.times(run.count) for run in self.runs), LocalParameters())

    @cached_property
    def saved_bytes(self) -> int:
        """Activation bytes one micro-batch keeps between its forward and its backward."""
        return sum(run.forward.saved_bytes * run.count for run in self.runs)

    @cached_property
    def held(self) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
        """Where the forward and the backward pass may hold most."""
        backward = [(run, run.backward, run.parameters.total) for run in reversed(self.runs)]
        return _held([(run, run.forward, 0) for run in self.runs]), _held(backward)


def _held(blocks: Iterable[tuple[Run, Block, int]]) -> tuple[Held, ...]:
    """Of a pass of runs, a block and the gradients it makes."""
    live = made = 0
    layers = False
    found = [Held(0, 0, in_layer=True)]
    for run, block, gradients in blocks:
        # Each repetition leaves its activations or gradients behind.
        stays = block.saved_bytes + block.cached_bytes
        for before in sorted({0, min(1, run.count - 1), run.count - 1}):
            start, there = live + before * stays, made + before * gradients
            reduces = run.is_layer and gradients > 0
            for less, own in block.moments:
                most = start + block.peak_bytes - less
                found.append(
                    Held(most, there, run.is_layer, own, reduces and (layers or before > 0))
                )
            if reduces:
                found.append(Held(start + stays, there + gradients, True, gradients, True))
        live += run.count * stays
        made += run.count * gradients
        layers = layers or run.is_layer
    return tuple(found)


@dataclass(frozen=True)
class Stage:
    """One pipeline stage: its chunks, and what it does once per step.

    ``finish`` runs when all gradients are reduced (norm and embedding gradients, gradient
    norm), ``optimizer`` after it.
    """

    chunks: tuple[Chunk, ...]
    finish: Block
    optimizer: Block

    @property
    def runs(self) -> list[Run]:
        """Those of all chunks."""
        return [run for chunk in self.chunks for run in chunk.runs]

    @cached_property
    def parameters(self) -> LocalParameters:
        return sum((chunk.parameters for chunk in self.chunks), LocalParameters())

    @cached_property
    def fused_weights(self) -> int:
        """Elements of weights whose gradients GEMMs add to a main gradient, of a shape once."""
        blocks = {id(run.backward): run.backward for run in self.runs}
        ops = [op for block in blocks.values() for op in block.ops]
        shapes = {(op.m, op.n) for op in ops if isinstance(op, Gemm) and op.accumulate}
        shapes |= {(op.n, op.k) for op in ops if isinstance(op, GroupedGemm) and op.accumulate}
        return sum(rows * columns for rows, columns in shapes)

    @cached_property
    def digest(self) -> tuple[object, ...]:
        """Content of the rank program: equal digests are interchangeable ranks."""
        chunks = tuple(chunk.digest for chunk in self.chunks)
        return chunks, self.finish.digest, self.optimizer.digest


@dataclass(frozen=True)
class Workload:
    """One training step of every unique rank.

    ``stage_boundary_bytes`` travel between neighbouring stages per micro-batch and direction.
    """

    stages: tuple[Stage, ...]
    communicators: dict[str, Communicator]
    stage_boundary_bytes: int

    @property
    def blocks(self) -> Iterator[Block]:
        """Every block of the passes and of the step's end, those of equal stages once."""
        for stage in {id(stage): stage for stage in self.stages}.values():
            for run in stage.runs:
                yield from (run.forward, run.backward)
            yield from (stage.finish, stage.optimizer)
