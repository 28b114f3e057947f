"""The step operation by operation: what a profiler would show, for every unique rank."""

from __future__ import annotations

from dataclasses import dataclass

from .engine import Floats, Ints
from .priced import PricedOp

STREAMS = ("host", "compute", "communication", "data_parallel", "pipeline")
HOST, COMPUTE, COMMUNICATION, DATA_PARALLEL, PIPELINE = range(5)
# What a column says where there is nothing: no micro-batch, block, launch.
NONE = -1
LAUNCH = "launch"
# And for copies of activations to or from the host, where a pass waits for them.
COPIES = "activation copies"


@dataclass(frozen=True)
class Passes:
    """Passes and what else the compute streams run, in columns of equal length.

    ``name``: ``forward``, ``backward``, or the block that is no pass; ``stage``; ``chunk`` and
    ``micro_batch``, or -1.
    """

    name: tuple[str, ...]
    stage: Ints
    chunk: Ints
    micro_batch: Ints


@dataclass(frozen=True)
class Timeline:
    """Operations of one step, one entry per operation in columns of equal length (``rows``).

    ``operation``: index into ``operations``, the distinct ones with their prices (None: the host
    launches one); ``stage``: pipeline stage (unique rank); ``stream``: index into ``STREAMS``;
    ``micro_batch``: or -1; ``block``: number of the block the row is part of, or -1;
    ``launched_by``: row of its launch, or -1; times in seconds from the step's start.

    Rows of one stream of one stage never overlap, except on ``pipeline`` the transfers that run
    beside compute: those take no link of the simulated machine and may.

    ``block_name`` and ``block_pass``, by block: what it is, and which entry of ``passes`` it is
    part of. ``edges``: rows before and after, equal shapes: what a row waits for besides its
    stream, sent rows before what needs them among it. ``sends``: rows of ``pipeline`` with the
    stage each is sent to, shape (2, transfers).
    """

    operations: tuple[PricedOp | None, ...]
    operation: Ints
    stage: Ints
    stream: Ints
    micro_batch: Ints
    block: Ints
    launched_by: Ints
    start_s: Floats
    end_s: Floats
    block_name: tuple[str, ...]
    block_pass: Ints
    passes: Passes
    edges: tuple[Ints, Ints]
    sends: Ints

    @property
    def step_time_s(self) -> float:
        return float(self.end_s.max())

    @property
    def names(self) -> tuple[str, ...]:
        """Of ``operations``."""
        return tuple(LAUNCH if each is None else each.op.name for each in self.operations)
