"""The rows of a comparison: by operation, by class, by kind of communication."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from trainscout.simulators.predictor.workload.ir import Collective, SendRecv
from trainscout.simulators.virtual_cluster.traces.comparison import ClassComparison
from trainscout.simulators.virtual_cluster.traces.kernel_classes import CLASSES, COMMUNICATION

from .matching import Matched
from .measured import MeasuredOperation, MeasuredProfile
from .predicted import END, PredictedOperation, class_of, shape_text

SHAPED = ("gemm", "attention", "convolution")
"""Classes whose operations are matched one by one; the others by where they stand."""
BY_PLACE = ("norm", "softmax", "cross_entropy", "embedding", "reduce", "elementwise", "copy")
MEMORY_BOUND = "norms, elementwise, copies"
TRAILING = END, "end of step"
"""Pass and block of what follows the last product: norm of the gradients, casts, the optimizer."""


@dataclass(frozen=True)
class OperationRow:
    """One operation of a block, or (``name`` is ``MEMORY_BOUND``) all that is bound by memory in
    it: calls and seconds a step, measured and predicted."""

    pass_: str
    block: str
    name: str
    shape: str
    measured_calls: float
    predicted_calls: float
    measured_s: float
    predicted_s: float


@dataclass(frozen=True)
class CollectiveRow:
    """One kind of communication in groups of one size: calls, bytes and seconds a step.

    Measured seconds include the wait for other ranks unless several ranks were profiled.
    """

    kind: str
    group: str
    group_size: int
    measured_calls: float
    predicted_calls: float
    measured_bytes: float
    predicted_bytes: float
    measured_s: float
    predicted_s: float


def operation_rows(
    profile: MeasuredProfile,
    kept: Sequence[PredictedOperation],
    matched: Matched,
    predicted: Sequence[PredictedOperation],
) -> tuple[tuple[OperationRow, ...], float]:
    """Rows in predicted order, and the measured seconds that were placed in blocks."""
    measured, steps = profile.operations, profile.steps
    shapes: dict[tuple[str, str, str], str] = {}
    sums: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0] * 4)
    of_part: dict[int, int] = {}
    for pair in matched.pairs:
        of_part |= dict.fromkeys(pair.predicted, pair.predicted[0])
    counted = set(map(id, kept))
    ends = END in {each.pass_ for each in kept}
    shaped = [at for at, each in enumerate(predicted) if class_of(each.op) in SHAPED]
    shaped = [at for at in shaped if id(predicted[at]) in counted]
    for at, each in enumerate(predicted):
        kind = class_of(each.op)
        if id(each) not in counted or kind in COMMUNICATION:
            continue
        memory = kind not in SHAPED
        name = (kind if kind == "optimizer" else MEMORY_BOUND) if memory else each.op.name
        # Several that were measured as one are one row, under the first one's name.
        name = predicted[of_part.get(at, at)].op.name if not memory else name
        key = each.pass_, each.block, name
        if name == MEMORY_BOUND and ends and at > shaped[-1]:
            key = *TRAILING, name
        shapes.setdefault(key, "" if memory else shape_text([each.op]))
        sums[key][1] += 1
        sums[key][3] += each.seconds
    for at, to in matched.predicted_of.items():
        key = predicted[to].pass_, predicted[to].block, predicted[to].op.name
        sums[key][0] += 1 / steps
        sums[key][2] += measured[at].seconds / steps
    placed_s = 0.0
    for at, (pass_, block) in _places(measured, predicted, matched, ends).items():
        key = pass_, block, MEMORY_BOUND
        if key in shapes:
            sums[key][0] += measured[at].launches / steps
            sums[key][2] += measured[at].seconds / steps
            placed_s += measured[at].seconds
    key = END, "optimizer", "optimizer"
    for operation in measured:
        if operation.kernel_class == "optimizer" and key in shapes:
            sums[key][0] += operation.launches / steps
            sums[key][2] += operation.seconds / steps
            placed_s += operation.seconds
    rows = [OperationRow(*key, shapes[key], *sums[key]) for key in shapes]
    return tuple(rows), placed_s


def _places(
    measured: Sequence[MeasuredOperation],
    predicted: Sequence[PredictedOperation],
    matched: Matched,
    ends: bool,
) -> dict[int, tuple[str, str]]:
    """Block of what is bound by memory: that of the next matched operation of its step, as norms
    and rotations precede what they are made for; after the last one the end of the step, where
    ``ends`` says that it was profiled, else the last one's."""
    found: dict[int, tuple[str, str]] = {}
    waiting: list[int] = []
    last: tuple[str, str] | None = None
    step = -1
    for at, each in enumerate(measured):
        if each.step != step:
            found |= dict.fromkeys(waiting, TRAILING if ends else last) if last else {}
            waiting, last, step = [], None, each.step
        if at in matched.predicted_of:
            known = predicted[matched.predicted_of[at]]
            last = known.pass_, known.block
            found |= dict.fromkeys(waiting, last)
            waiting = []
        elif each.kernel_class in BY_PLACE:
            waiting.append(at)
    return found | (dict.fromkeys(waiting, TRAILING if ends else last) if last else {})


def class_rows(
    measured: Sequence[MeasuredOperation], predicted: Sequence[PredictedOperation], steps: int
) -> tuple[ClassComparison, ...]:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for each in measured:
        sums[group_of(each.kernel_class)][0] += each.seconds / steps
    for other in predicted:
        sums[group_of(class_of(other.op))][1] += other.seconds
    names = dict.fromkeys(group_of(name) for name in CLASSES)
    return tuple(ClassComparison(name, *sums[name]) for name in names if name in sums)


def group_of(kernel_class: str) -> str:
    """The class that a table shows: those bound by memory as one, since what a framework fuses
    moves between them."""
    return MEMORY_BOUND if kernel_class in BY_PLACE else kernel_class


_KINDS = {
    "allreduce": "all_reduce", "_allreduce_base": "all_reduce", "all_reduce": "all_reduce",
    "_allgather_base": "all_gather", "allgather": "all_gather", "all_gather": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather", "_all_gather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter", "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all": "all_to_all", "all_to_allv": "all_to_all", "alltoall_base": "all_to_all",
    "broadcast": "broadcast", "send": "send_recv", "recv": "send_recv",
}  # fmt: skip


def kind_of(recorded: str) -> str:
    """c10d's name of a collective as ours."""
    return _KINDS.get(recorded.lower(), recorded)


def collective_rows(
    measured: Sequence[MeasuredOperation], predicted: Sequence[PredictedOperation], steps: int
) -> tuple[CollectiveRow, ...]:
    groups: dict[tuple[str, int], str] = {}
    sums: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0] * 6)
    for each in measured:
        if each.kernel_class not in COMMUNICATION:
            continue
        call = each.call
        key = ("unknown", 0) if call is None else (kind_of(call.kind), call.group_size)
        groups.setdefault(key, call.group if call else "sizes not recorded")
        size = 0 if call is None else max(call.bytes_in, call.bytes_out)
        for place, value in ((0, 1.0), (2, size), (4, each.seconds)):
            sums[key][place] += value / steps
    for other in predicted:
        if not isinstance(other.op, Collective | SendRecv):
            continue
        kind = getattr(other.op, "kind", "send_recv")
        key = kind, other.group_size
        groups.setdefault(key, other.op.communicator)
        for place, value in ((1, 1.0), (3, other.op.bytes), (5, other.seconds)):
            sums[key][place] += value
    return tuple(
        CollectiveRow(kind, groups[kind, size], size, *sums[kind, size]) for kind, size in sums
    )
