"""Time by class of device work: what a profiler measured beside what was predicted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainscout.simulators.predictor.question.errors import InputError

from .chrome import THREADS, read_chrome, slices
from .kernel_classes import CLASSES, COMMUNICATION, class_of_operation
from .kineto import KinetoTrace, TimedKernel
from .perfetto import FIRST_COMMUNICATOR_THREAD, FIRST_STREAM_THREAD, PHASE_THREAD, STEP_WORDS


@dataclass(frozen=True)
class ClassTime:
    """Device time of one class of work, over everything recorded, and how many kernels it was."""

    seconds: float
    kernels: int


@dataclass(frozen=True)
class ClassComparison:
    """One class, measured and predicted: seconds a step."""

    kernel_class: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1; None where nothing was measured."""
        return self.predicted_s / self.measured_s - 1 if self.measured_s else None


@dataclass(frozen=True)
class Busy:
    """Seconds in which the device computed, communicated, and communicated without computing."""

    computing_s: float
    communicating_s: float
    exposed_s: float


def measured_times(profile: KinetoTrace) -> dict[str, ClassTime]:
    """Time by class of a profile, in the order of ``CLASSES``."""
    return _summed((each.kernel_class, each.duration_s) for each in profile.kernels)


def read_predicted(field: str, path: Path, rank: int) -> tuple[dict[str, ClassTime], int]:
    """Time by class of one rank in a file of ``write_perfetto`` with times, and its steps.

    Raises:
        InputError: naming ``field``, as ``read_chrome`` and when the file shows no such rank.
    """
    shown = [event for event in slices(read_chrome(field, path)) if event.get("pid") == rank]
    if not shown:
        raise InputError(field, path, f"shows no rank {rank}")
    classed: list[tuple[str, float]] = []
    steps: set[str] = set()
    for event in shown:
        name: object = event.get("name")
        thread: object = event.get("tid")
        micros: object = event.get("dur")
        if not (
            isinstance(name, str) and isinstance(thread, int) and isinstance(micros, int | float)
        ):
            problem = f"has a slice without name, thread or duration: {name!r}"
            raise InputError(field, path, problem)
        thread %= THREADS
        if thread == PHASE_THREAD:
            steps.add(name.partition(STEP_WORDS)[2])
        elif thread >= FIRST_COMMUNICATOR_THREAD:
            transfer = name.startswith(("send ", "recv "))
            classed.append(("point_to_point" if transfer else "collective", micros * 1e-6))
        elif thread >= FIRST_STREAM_THREAD:
            # The many small operations of torch that no pattern names go element by element.
            unnamed = "elementwise" if name.startswith("aten.") else "other"
            classed.append((class_of_operation(name) or unnamed, micros * 1e-6))
    return _summed(classed), max(len(steps), 1)


def spans(kernels: Iterable[TimedKernel], *, communicating: bool) -> list[tuple[float, float]]:
    """When kernels ran that communicate, or the others, as intervals that do not overlap."""
    return union(
        (each.start_s, each.end_s)
        for each in kernels
        if (each.kernel_class in COMMUNICATION) == communicating
    )


def busy(kernels: Sequence[TimedKernel]) -> Busy:
    """How much of the time the device computed and communicated, whatever the streams."""
    computing, communicating = (spans(kernels, communicating=each) for each in (False, True))
    both = union([*computing, *communicating])
    computing_s = length(computing)
    return Busy(computing_s, length(communicating), length(both) - computing_s)


def compare(
    measured: Mapping[str, ClassTime],
    measured_steps: int,
    predicted: Mapping[str, ClassTime],
    predicted_steps: int,
) -> tuple[ClassComparison, ...]:
    """Both by class, a step: classes in the order of ``CLASSES``.

    Raises:
        InputError: for numbers of steps below 1.
    """
    for field, steps in (("measured_steps", measured_steps), ("predicted_steps", predicted_steps)):
        if steps < 1:
            raise InputError(field, steps, "is out of range", ">= 1")
    nothing = ClassTime(0.0, 0)
    return tuple(
        ClassComparison(
            each,
            measured.get(each, nothing).seconds / measured_steps,
            predicted.get(each, nothing).seconds / predicted_steps,
        )
        for each in CLASSES
        if each in measured or each in predicted
    )


def _summed(classed: Iterable[tuple[str, float]]) -> dict[str, ClassTime]:
    seconds: dict[str, float] = defaultdict(float)
    kernels: dict[str, int] = defaultdict(int)
    for found, duration_s in classed:
        seconds[found] += duration_s
        kernels[found] += 1
    return {each: ClassTime(seconds[each], kernels[each]) for each in CLASSES if each in kernels}


def union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same times as intervals that do not overlap, in order."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def length(intervals: Iterable[tuple[float, float]]) -> float:
    """Seconds of intervals together."""
    return sum(end - start for start, end in intervals)
