"""What one layer of a model does in one pass, from the events of its trace: a block.

Memory follows the built-in blocks' convention: a layer's activations hold its input where its
backward pass needs it, and never its output, which the next layer counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.communicators import place, place_span, spans
from trainscout.simulators.predictor.workload.ir import Block, Communicator
from trainscout.simulators.virtual_cluster.emulation.sink import ListSink
from trainscout.simulators.virtual_cluster.traces.events import Event, Free, Group, Resize
from trainscout.simulators.virtual_cluster.traces.fused import Held
from trainscout.simulators.virtual_cluster.traces.lowering.block import block_ops

# Which of the workload's communicators each of Megatron-Core's groups is.

# A group of one rank, which costs nothing (NCCL returns at once).
ALONE = "alone"
# Every rank: the gradient norm under a distributed optimizer.
WORLD = "world"
# ``group_desc`` in ``megatron/core/parallel_state.py``.
_DIMENSIONS = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp_cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "etp_ep",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "stage",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "stage",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": WORLD,
    "EXPERT_DATA_PARALLEL_GROUP": "expert_dp",
    "MODEL_PARALLEL_GROUP": "model",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "expert_model",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "EMBEDDING_GROUP": "embedding",
}


def dimensions_of(groups: Iterable[Group]) -> dict[str, str]:
    """Group name -> communicator; a group that no workload knows keeps its description."""
    return {
        group.name: ALONE
        if len(group.ranks) == 1
        else _DIMENSIONS.get(group.description, group.description or WORLD)
        for group in groups
    }


def further_communicators(job: Job) -> dict[str, Communicator]:
    """What Megatron-Core's layers use besides ``workload.communicators``: the ranks that share a
    sequence (statistics of a router), and all of a stage (the largest values of 8-bit tensors)."""
    sharing = job.recipe.tp * job.recipe.cp
    return {
        "tp_cp": place("tp_cp", sharing, 1, job),
        "stage": place_span("stage", (*spans(job)["tp"], *spans(job)["dp"]), job),
    }


# A sink that keeps events, and which of them were issued inside a module's forward pass.


class EventList(ListSink):
    """``in_forward`` are indices into ``events``."""

    def __init__(self) -> None:
        super().__init__()
        self.in_forward: set[int] = set()
        self.depth = 0
        self.emit = self._emit

    def _emit(self, event: Event) -> None:
        if self.depth:
            self.in_forward.add(len(self.events))
        self.events.append(event)

    def clear(self) -> None:
        """Forget what was recorded so far."""
        self.events.clear()
        self.in_forward.clear()


@contextmanager
def watching_modules(events: EventList) -> Iterator[None]:
    """Tell forward passes that autograd repeats from what autograd launches itself."""
    from torch.nn.modules import module

    def enter(*_: Any) -> None:
        events.depth += 1

    def leave(*_: Any) -> None:
        events.depth -= 1

    before = module.register_module_forward_pre_hook(enter)
    after = module.register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()


@dataclass(frozen=True)
class Recording:
    """A layer's two passes as recorded.

    ``forward`` begins before the input is made and ends when only what autograd keeps, and the
    output, is alive; ``between`` gives the output up and makes its gradient; ``backward`` follows.
    ``before`` are the storages that live on from earlier rounds and their bytes: parameters,
    and what modules remember until they run again. ``output_bytes`` is the result's size.
    ``again`` are the indices of backward events that recomputed forward passes issued.
    ``communicators`` maps the names of groups to the workload's.
    """

    name: str
    before: Mapping[int, int]
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
    everything = (*recorded.forward, *recorded.between, *recorded.backward)
    _check_remembered(everything, recorded)
    memory = _Memory(everything)
    ahead_peak = memory.play(recorded.forward)
    kept = memory.live - recorded.output_bytes
    memory.forget_peak()
    memory.play(recorded.between)
    back_peak = memory.play(recorded.backward) - kept
    forward = [op for _, op in _operations(recorded.forward, recorded.communicators)]
    backward = _operations(recorded.backward, recorded.communicators)
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


def live_storages(events: Sequence[Event]) -> dict[int, int]:
    """Bytes of every storage that is allocated and not freed by ``events``."""
    held = Held()
    for event in events:
        held.follow(event)
    return held.bytes


def _operations(
    events: Sequence[Event], communicators: Mapping[str, str]
) -> list[tuple[int, ir.Op]]:
    """What costs something, with the index of the event it came from."""
    placed: list[tuple[int, ir.Op]] = []
    for index, op in block_ops(events, communicators):
        if getattr(op, "communicator", None) == ALONE:
            continue
        both = _exchange(placed[-1][1], op) if placed else None
        if both is None:
            placed.append((index, op))
        else:
            placed[-1] = (placed[-1][0], both)
    return placed


def _exchange(first: ir.Op, second: ir.Op) -> ir.SendRecv | None:
    """A message that is sent while as much is received, as the one exchange that it is."""
    if not isinstance(first, ir.SendRecv) or not isinstance(second, ir.SendRecv):
        return None
    if {first.name, second.name} != {"send", "recv"}:
        return None
    if (first.bytes, first.communicator) != (second.bytes, second.communicator):
        return None
    return replace(first, name="exchange", overlaps=max(first.overlaps, second.overlaps))


def _waits(op: ir.Op) -> bool:
    """Whether an operation runs nothing on the device."""
    return isinstance(op, ir.HostSync)


def _check_remembered(events: Sequence[Event], recorded: Recording) -> None:
    """See that what is left takes the places of equal storages from the round before, which went.

    Modules hold such until they run again (Megatron-Core's token dispatcher: the router's
    probabilities, and by their graph what entered a checkpoint). Here a pass gives back what it
    leaves so; what is held beyond that is one round's, whatever number of micro-batches.

    Raises:
        LeftoverError: when something else is left.
    """
    gone = {event.storage for event in events if isinstance(event, Free)}
    old = sorted(size for storage, size in recorded.before.items() if storage in gone)
    new = sorted(live_storages(events).values())
    if old != new:
        left = sum(new) - sum(old)
        problem = f"{recorded.name}: {left} bytes are still live after the backward pass"
        raise LeftoverError(problem)


class _Memory:
    """Bytes of storages that came into being since the layer began, as events pass."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._held = Held()
        self.peak = 0

    @property
    def live(self) -> int:
        return self._held.total_bytes

    def forget_peak(self) -> None:
        self.peak = self.live

    def play(self, events: Sequence[Event]) -> int:
        """The highest ``live`` so far, after these events."""
        for event in events:
            # What is older than the layer may change its size, too.
            if not isinstance(event, Resize) or event.storage in self._held.bytes:
                self._held.follow(event)
                self.peak = max(self.peak, self.live)
        return self.peak
