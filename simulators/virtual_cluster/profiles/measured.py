"""A step as it was measured: operations with their time, what ran beside what, and the gaps."""

from __future__ import annotations

import bisect
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Kernel
from trainscout.simulators.virtual_cluster.profiles.recorded import kernels_of, product_of
from trainscout.simulators.virtual_cluster.profiles.steps import Steps, steps_of
from trainscout.simulators.virtual_cluster.traces.comparison import length, union
from trainscout.simulators.virtual_cluster.traces.kernel_classes import (
    COMMUNICATION,
    class_of_operation,
)
from trainscout.simulators.virtual_cluster.traces.kineto import (
    CollectiveCall,
    KinetoTrace,
    RecordedOperation,
    TimedKernel,
    read_kineto,
)

FIELD = "profile"
Intervals = Sequence[tuple[float, float]]
_MOST_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class MeasuredOperation:
    """One operation of a step: what one call launched, or one kernel where calls are not known.

    ``kernels`` are what it amounts to (none: not known), ``seconds`` its device time, of which
    ``beside_s`` ran while communication did, most of it ``beside`` this call; ``launches`` how
    many kernels it was.
    """

    step: int
    name: str
    kernel_class: str
    kernels: tuple[Kernel, ...]
    seconds: float
    start_s: float
    beside_s: float
    launches: int
    call: CollectiveCall | None = None
    beside: CollectiveCall | None = None


@dataclass(frozen=True)
class HostWork:
    """``launches`` of one thread, all steps together, how many of them the device ``waited`` for,
    and the seconds from the launch before to these, without the host's own waits."""

    launches: int
    waited: int
    waited_s: float


@dataclass(frozen=True)
class Occupancy:
    """Device seconds a step: computing, communicating, communicating without computing, and idle,
    of which ``host_gap_s`` because the next kernel had not been launched."""

    computing_s: float
    communicating_s: float
    exposed_s: float
    idle_s: float
    host_gap_s: float


@dataclass(frozen=True)
class MeasuredProfile:
    """A profile as it is compared: its steps' operations, and what the step took.

    ``found`` says how steps were told apart, ``earlier`` how many kernels belong to none.
    ``host_work`` by thread; the profiler's own share is in it.
    """

    path: Path
    gpu: str | None
    rank: int | None
    world_size: int | None
    steps: int
    found: str
    earlier: int
    step_s: float
    operations: tuple[MeasuredOperation, ...]
    occupancy: Occupancy
    host_work: tuple[HostWork, ...]


def measure_profile(path: Path) -> MeasuredProfile:
    """Read a profile and cut it into steps.

    Raises:
        InputError: as ``read_kineto``, and for one without device work.
    """
    profile = read_kineto(path)
    if not profile.kernels:
        problem = "holds no device work"
        raise InputError(FIELD, path, problem, "a profile taken with ProfilerActivity.CUDA")
    return measured_profile(path, profile)


def measured_profile(path: Path, profile: KinetoTrace) -> MeasuredProfile:
    """What was read from ``path``, cut into steps; it has device work."""
    steps = steps_of(profile)
    waited = host_intervals(steps, profile.host_waits)
    launches = Counter(each.thread for kernels in steps.kernels for each in kernels)
    return MeasuredProfile(
        path,
        profile.gpu,
        profile.rank,
        profile.world_size,
        len(steps.kernels),
        steps.found,
        steps.earlier,
        steps.step_s,
        operations_of(steps),
        occupancy(steps),
        tuple(
            [
                HostWork(count, len(waited[thread]), sum(waited[thread]))
                for thread, count in launches.items()
            ]
        ),
    )


def operations_of(steps: Steps) -> tuple[MeasuredOperation, ...]:
    """Every operation of every step, in order of start."""
    found: list[MeasuredOperation] = []
    for number, kernels in enumerate(steps.kernels):
        talking = union(_spans(kernels, communicating=True))
        talkers = [each for each in kernels if each.collective is not None]
        calls: dict[tuple[int, str, int], list[TimedKernel]] = defaultdict(list)
        products: Counter[int] = Counter()
        for position, kernel in enumerate(kernels):
            calls[_part_of_call(position, kernel, products)].append(kernel)
        for (_, _, part), each in calls.items():
            one = _operation(number, each, talking, first=part == 0)
            found.append(replace(one, beside=_beside(one, talkers)) if one.beside_s else one)
    return tuple(sorted(found, key=lambda each: (each.step, each.start_s)))


def _part_of_call(
    position: int, kernel: TimedKernel, products: Counter[int]
) -> tuple[int, str, int]:
    """What a kernel is told apart by: PyTorch's operations are one thing each, modules of vendors
    are what they launch of each class, product by product."""
    recorded = kernel.recorded
    if recorded is None:
        return -1 - position, "", 0  # alone, under a number that no call has
    if recorded.name.startswith("aten::"):
        return recorded.number, "", 0
    if kernel.kernel_class != "gemm":
        return recorded.number, kernel.kernel_class, 0
    # What adds up the parts of a product belongs to it.
    if not re.search("splitk|reduce", kernel.name, re.IGNORECASE):
        products[recorded.number] += 1
    return recorded.number, "gemm", max(0, products[recorded.number] - 1)


def _operation(
    step: int, kernels: list[TimedKernel], talking: Intervals, *, first: bool
) -> MeasuredOperation:
    # A product and the kernel that adds up its parts are one operation, of the product's class.
    longest = max(kernels, key=lambda each: each.duration_s)
    recorded = longest.recorded
    communicates = longest.kernel_class in COMMUNICATION
    beside_s = 0.0
    if not communicates:
        beside_s = sum(_overlap(talking, each.start_s, each.end_s) for each in kernels)
    return MeasuredOperation(
        step,
        recorded.name if recorded else longest.name,
        (recorded and class_of_operation(recorded.name)) or longest.kernel_class,
        _known(recorded, longest) if recorded and first and not communicates else (),
        sum(each.duration_s for each in kernels),
        kernels[0].start_s,
        beside_s,
        len(kernels),
        longest.collective,
    )


def _beside(operation: MeasuredOperation, talkers: Sequence[TimedKernel]) -> CollectiveCall | None:
    """The communication that ran longest during an operation; few run at a time."""
    start_s, end_s = operation.start_s, operation.start_s + operation.seconds
    last = bisect.bisect_left(talkers, end_s, key=lambda each: each.start_s)
    return (
        max(
            talkers[max(0, last - _MOST_AT_ONCE) : last],
            key=lambda each: min(each.end_s, end_s) - max(each.start_s, start_s),
        ).collective
        if last
        else None
    )


def _known(recorded: RecordedOperation, longest: TimedKernel) -> tuple[Kernel, ...]:
    if recorded.name.startswith("aten::"):
        return kernels_of(recorded)
    return product_of(recorded) if longest.kernel_class == "gemm" else ()


def occupancy(steps: Steps) -> Occupancy:
    """The mean step's."""
    sums = [0.0] * 5
    for kernels in steps.kernels:
        computing = union(_spans(kernels, communicating=False))
        talking = union(_spans(kernels, communicating=True))
        both = union([*computing, *talking])
        idle = [(end, start) for (_, end), (start, _) in itertools.pairwise(both)]
        launched = {each.start_s: each.launched_s for each in kernels}
        gaps = 0.0
        for began, ended in idle:
            launch_s = launched.get(ended)
            if launch_s is not None:
                gaps += max(0.0, min(launch_s, ended) - began)
        parts = (
            length(computing),
            length(talking),
            length(both) - length(computing),
            length(idle),
            gaps,
        )
        sums = [total + part for total, part in zip(sums, parts, strict=True)]
    count = max(len(steps.kernels), 1)
    return Occupancy(*(total / count for total in sums))


def host_intervals(steps: Steps, waits: Intervals) -> dict[int | None, list[float]]:
    """What the host needs for a launch: by thread, the seconds since the launch before, but for
    ``waits``, of each one that the device waited for."""
    found: dict[int | None, list[float]] = defaultdict(list)
    for before, kernel in (
        each for kernels in steps.kernels for each in itertools.pairwise(kernels)
    ):
        if before.launched_s is None or kernel.launched_s is None:
            continue
        behind = kernel.launched_s > before.end_s and kernel.thread == before.thread
        apart_s = kernel.launched_s - before.launched_s
        if behind and apart_s > 0:
            apart_s -= _overlap(waits, before.launched_s, kernel.launched_s)
            found[kernel.thread].append(apart_s)
    return found


def _spans(kernels: Sequence[TimedKernel], *, communicating: bool) -> Intervals:
    return [
        (each.start_s, each.end_s)
        for each in kernels
        if (each.kernel_class in COMMUNICATION) == communicating
    ]


def _overlap(intervals: Intervals, start_s: float, end_s: float) -> float:
    at = max(0, bisect.bisect_right(intervals, (start_s, float("inf"))) - 1)
    total = 0.0
    for low, high in intervals[at:]:
        if low >= end_s:
            break
        total += max(0.0, min(high, end_s) - max(low, start_s))
    return total
