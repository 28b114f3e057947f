"""What one piece of a model does in one pass, from the events of its trace: a block.

Memory follows the built-in blocks' convention: a piece's activations hold its input where its
backward pass needs it, and never its output, which the next piece counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulators.traces.events import Alloc, Event, Free, Resize
from simulators.traces.lowering.block import block_ops
from simulators.workload import ir
from simulators.workload.ir import Block


@dataclass(frozen=True)
class Recording:
    """A piece's two passes as recorded.

    ``forward`` begins before the input is made and ends when only what autograd keeps, and the
    output, is alive; ``between`` gives the output up and makes its gradient; ``backward`` follows.
    ``output_bytes`` is the result's size. ``again`` are the indices of backward events that
    recomputed forward passes issued. ``communicators`` maps the names of groups to the workload's.
    """

    name: str
    forward: Sequence[Event]
    between: Sequence[Event]
    backward: Sequence[Event]
    output_bytes: int
    again: frozenset[int]
    communicators: Mapping[str, str]


class LeftoverError(ValueError):
    """A backward pass did not give back what its forward pass kept."""


def blocks_of(recorded: Recording) -> tuple[Block, Block]:
    """Forward and backward block.

    Raises:
        LeftoverError: when activations outlive the backward pass, or something else is left.
    """
    memory = _Memory()
    ahead_peak = memory.play(recorded.forward)
    kept = memory.live - recorded.output_bytes
    memory.forget_peak()
    memory.play(recorded.between)
    back_peak = memory.play(recorded.backward) - kept
    if memory.live:
        problem = f"{recorded.name}: {memory.live} bytes are still live after the backward pass"
        raise LeftoverError(problem)
    forward = [op for _, op in block_ops(recorded.forward, recorded.communicators)]
    backward = block_ops(recorded.backward, recorded.communicators)
    repeated = sum(index in recorded.again and not _waits(op) for index, op in backward)
    return (
        Block(
            f"{recorded.name}_forward",
            (*forward, ir.Alloc("activations", kept)),
            ahead_peak,
            sum(not _waits(op) for op in forward),
        ),
        Block(
            f"{recorded.name}_backward",
            (*(op for _, op in backward), ir.Free("activations", kept)),
            max(0, back_peak),
            repeated,
        ),
    )


def _waits(op: ir.Op) -> bool:
    """Whether an operation runs nothing on the device."""
    return isinstance(op, ir.HostSync)


class _Memory:
    """Bytes of the storages that came into being since the piece began."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.live = 0
        self.peak = 0

    def forget_peak(self) -> None:
        self.peak = self.live

    def play(self, events: Sequence[Event]) -> int:
        """The highest ``live`` so far, after these events."""
        for event in events:
            if isinstance(event, Alloc):
                self.live += event.bytes
                self.sizes[event.storage] = event.bytes
            elif isinstance(event, Free):
                self.live -= self.sizes.pop(event.storage, 0)
            elif isinstance(event, Resize) and event.storage in self.sizes:
                self.live += event.bytes - self.sizes[event.storage]
                self.sizes[event.storage] = event.bytes
            self.peak = max(self.peak, self.live)
        return self.peak
