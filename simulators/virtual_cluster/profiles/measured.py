"""A step as it was measured: operations with their time, what ran beside what, and the gaps."""

from __future__ import annotations

import bisect
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Kernel
from trainscout.simulators.virtual_cluster.traces import kineto
from trainscout.simulators.virtual_cluster.traces.comparison import busy, length, spans, union
from trainscout.simulators.virtual_cluster.traces.kernel_classes import (
    COMMUNICATION,
    class_of_operation,
)

from .recorded import kernels_of, product_of

# A profile cut into steps: by the profiler's marks, else by what repeats.

MARKED, REPEATED, WHOLE = "marked by the profiler", "found by what repeats", "not marked"
# Fewer kernels that repeat are a loop of something else.
_FEWEST = 10
_MOST_STEPS = 100
# Of kernels one period apart: steps repeat but for a few (a loss that is logged now and then).
_ALIKE = 0.98


@dataclass(frozen=True)
class Steps:
    """Kernels by step, each in order of start; ``found`` says how they were distinguished.

    ``earlier`` kernels are left out: they were in flight when the profile began, or belong to no
    step. ``step_s``: from one step's first kernel to the next one's, the median; of a single step
    from its first kernel to the end of its last.
    """

    kernels: tuple[tuple[kineto.TimedKernel, ...], ...]
    found: str
    earlier: int
    step_s: float


def steps_of(profile: kineto.KinetoTrace) -> Steps:
    """Cut a profile into whole steps; all of it is one where nothing marks or repeats them."""
    launched = [each for each in profile.kernels if each.launched_s is not None]
    # Where no launch was recorded at all, nothing can be said of what came before.
    kernels = launched or list(profile.kernels)
    earlier = len(profile.kernels) - len(kernels)
    if profile.marks and launched:
        cut = _by_marks(kernels, [start for start, _ in profile.marks], profile.marks[-1][1])
        found = MARKED
    else:
        period = _period([(each.name, each.operation, each.shapes) for each in kernels])
        count = len(kernels) // period if period else 0
        cut = [kernels[at * period : (at + 1) * period] for at in range(count)]
        found = REPEATED if cut else WHOLE
        cut = cut or [kernels]
    cut = [each for each in cut if each]
    kept = sum(map(len, cut))
    return Steps(tuple(map(tuple, cut)), found, earlier + len(kernels) - kept, _step_seconds(cut))


def _by_marks(
    kernels: Sequence[kineto.TimedKernel], starts: list[float], end_s: float
) -> list[list[kineto.TimedKernel]]:
    """By when they were launched: the device may be a step behind the host."""
    cut: list[list[kineto.TimedKernel]] = [[] for _ in starts]
    for kernel in kernels:
        launched_s = kernel.launched_s
        assert launched_s is not None
        step = bisect.bisect_right(starts, launched_s) - 1
        if step >= 0 and launched_s <= end_s:
            cut[step].append(kernel)
    return cut


def _period(names: Sequence[Hashable]) -> int:
    """How many kernels a step has, 0 when no step repeats.

    Layers repeat within a step, too; but a step is the shortest stretch that holds every kernel
    there is: whatever occurs at all occurs in each.
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    coded = np.array([numbers[name] for name in names], dtype=np.int64)
    counts = Counter(coded.tolist())
    most = min(_MOST_STEPS, *counts.values()) if counts else 0
    for steps in range(most, 1, -1):
        period = round(len(coded) / steps)
        for candidate in (period, period - 1, period + 1):
            if not _FEWEST <= candidate <= len(coded) // 2:
                continue
            alike = coded[:-candidate] == coded[candidate:]
            if alike.mean() >= _ALIKE:
                return candidate
    return 0


def _step_seconds(cut: Sequence[Sequence[kineto.TimedKernel]]) -> float:
    if not cut:
        return 0.0
    starts = [each[0].start_s for each in cut]
    if len(starts) > 1:
        return float(np.median(np.diff(starts)))
    return max(kernel.end_s for kernel in cut[0]) - starts[0]


FIELD = "profile"
Intervals = Sequence[tuple[float, float]]
_MOST_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class MeasuredOperation:
    """One operation of a step: what one call launched, or one kernel where calls are not known.

    ``kernels`` are what it amounts to (none: not known), ``seconds`` its device time, of which
    ``overlapped_s`` ran while communication did, most of it the call ``overlapping``; ``launches``
    how many kernels it was.
    """

    step: int
    name: str
    kernel_class: str
    kernels: tuple[Kernel, ...]
    seconds: float
    start_s: float
    overlapped_s: float
    launches: int
    call: kineto.CollectiveCall | None = None
    overlapping: kineto.CollectiveCall | None = None


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

    ``found`` says how steps were distinguished, ``earlier`` how many kernels belong to none.
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
    profile = kineto.read_kineto(path)
    if not profile.kernels:
        problem = "holds no device work"
        raise InputError(FIELD, path, problem, "a profile taken with ProfilerActivity.CUDA")
    return measured_profile(path, profile)


def measured_profile(path: Path, profile: kineto.KinetoTrace) -> MeasuredProfile:
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
        talking = spans(kernels, communicating=True)
        talkers = [each for each in kernels if each.collective is not None]
        calls: dict[tuple[int, str, int], list[kineto.TimedKernel]] = defaultdict(list)
        products: Counter[int] = Counter()
        for position, kernel in enumerate(kernels):
            calls[_part_of_call(position, kernel, products)].append(kernel)
        for (_, _, part), each in calls.items():
            one = _operation(number, each, talking, first=part == 0)
            found.append(
                replace(one, overlapping=_overlapping(one, talkers)) if one.overlapped_s else one
            )
    return tuple(sorted(found, key=lambda each: (each.step, each.start_s)))


def _part_of_call(
    position: int, kernel: kineto.TimedKernel, products: Counter[int]
) -> tuple[int, str, int]:
    """What distinguishes a kernel: PyTorch's operations are one thing each, modules of vendors
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
    step: int, kernels: list[kineto.TimedKernel], talking: Intervals, *, first: bool
) -> MeasuredOperation:
    # A product and the kernel that adds up its parts are one operation, of the product's class.
    longest = max(kernels, key=lambda each: each.duration_s)
    recorded = longest.recorded
    communicates = longest.kernel_class in COMMUNICATION
    overlapped_s = 0.0
    if not communicates:
        overlapped_s = sum(_overlap(talking, each.start_s, each.end_s) for each in kernels)
    return MeasuredOperation(
        step,
        recorded.name if recorded else longest.name,
        (recorded and class_of_operation(recorded.name)) or longest.kernel_class,
        _known(recorded, longest) if recorded and first and not communicates else (),
        sum(each.duration_s for each in kernels),
        kernels[0].start_s,
        overlapped_s,
        len(kernels),
        longest.collective,
    )


def _overlapping(
    operation: MeasuredOperation, talkers: Sequence[kineto.TimedKernel]
) -> kineto.CollectiveCall | None:
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


def _known(recorded: kineto.RecordedOperation, longest: kineto.TimedKernel) -> tuple[Kernel, ...]:
    if recorded.name.startswith("aten::"):
        return kernels_of(recorded)
    return product_of(recorded) if longest.kernel_class == "gemm" else ()


def occupancy(steps: Steps) -> Occupancy:
    """The mean step's."""
    sums = [0.0] * 5
    for kernels in steps.kernels:
        both = union([*spans(kernels, communicating=False), *spans(kernels, communicating=True)])
        idle = [(end, start) for (_, end), (start, _) in itertools.pairwise(both)]
        launched = {each.start_s: each.launched_s for each in kernels}
        gaps = 0.0
        for began, ended in idle:
            launch_s = launched.get(ended)
            if launch_s is not None:
                gaps += max(0.0, min(launch_s, ended) - began)
        share = busy(kernels)
        parts = (share.computing_s, share.communicating_s, share.exposed_s, length(idle), gaps)
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


def _overlap(intervals: Intervals, start_s: float, end_s: float) -> float:
    at = max(0, bisect.bisect_right(intervals, (start_s, float("inf"))) - 1)
    total = 0.0
    for low, high in intervals[at:]:
        if low >= end_s:
            break
        total += max(0.0, min(high, end_s) - max(low, start_s))
    return total


# Profiles of several ranks of one job: which files, and what of a collective is waiting.

SUFFIXES = (".json", ".json.gz")


def read_profiles(field: str, path: Path) -> tuple[MeasuredProfile, ...]:
    """The profile in a file, or those in a folder, one a rank, in order of rank, with collectives
    as long as they took once all ranks were there (as far as these were profiled).

    Raises:
        InputError: naming ``field`` for a place without profiles; as ``measure_profile``; for two
            files of one rank, and for ranks of different jobs.
    """
    if not path.is_dir():
        return (measure_profile(path),)
    files = sorted(each for each in path.iterdir() if each.name.endswith(SUFFIXES))
    if not files:
        raise InputError(field, path, "holds no profiles", "files named .json or .json.gz")
    profiles = sorted(map(measure_profile, files), key=lambda each: each.rank or 0)
    for before, profile in itertools.pairwise(profiles):
        if before.rank == profile.rank:
            problem = f"is of rank {profile.rank}, as {before.path.name} is"
            raise InputError(FIELD, profile.path, problem, "one file a rank")
        if before.world_size != profile.world_size:
            problem = (
                f"is of {profile.world_size} ranks, {before.path.name} of {before.world_size}"
            )
            raise InputError(FIELD, profile.path, problem, "profiles of one job")
    return without_waits(profiles)


def without_waits(profiles: Sequence[MeasuredProfile]) -> tuple[MeasuredProfile, ...]:
    """The same with every collective as short as the rank saw it that came last: who comes
    earlier waits inside its kernel."""
    calls: dict[tuple[object, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, profile in enumerate(profiles):
        for at, operation in enumerate(profile.operations):
            call = operation.call
            # Equal names may be of different groups where the members were not recorded.
            if call is not None and (call.ranks or call.group_size == profile.world_size):
                calls[call.kind, call.group, call.ranks, operation.step][number].append(at)
    operations = [list(profile.operations) for profile in profiles]
    for members in calls.values():
        if len(members) < 2 or len({len(each) for each in members.values()}) > 1:
            continue  # one rank only, or a call of some of them is missing
        for together in zip(*members.values(), strict=True):
            met = [operations[number][at] for number, at in zip(members, together, strict=True)]
            shortest_s = min(each.seconds for each in met)
            for number, at in zip(members, together, strict=True):
                operations[number][at] = replace(operations[number][at], seconds=shortest_s)
    return tuple(
        replace(profile, operations=tuple(own))
        for profile, own in zip(profiles, operations, strict=True)
    )
