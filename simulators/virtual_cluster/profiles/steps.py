"""A profile cut into steps: by the profiler's marks, else by what repeats."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from trainscout.simulators.virtual_cluster.traces.kineto import KinetoTrace, TimedKernel

MARKED, REPEATED, WHOLE = "marked by the profiler", "found by what repeats", "not marked"
# Fewer kernels that repeat are a loop of something else.
_FEWEST = 10
_MOST_STEPS = 100
# Of kernels one period apart: steps repeat but for a few (a loss that is logged now and then).
_ALIKE = 0.98


@dataclass(frozen=True)
class Steps:
    """Kernels by step, each in order of start; ``found`` says how they were told apart.

    ``earlier`` kernels are left out: they were in flight when the profile began, or belong to no
    step. ``step_s``: from one step's first kernel to the next one's, the median; of a single step
    from its first kernel to the end of its last.
    """

    kernels: tuple[tuple[TimedKernel, ...], ...]
    found: str
    earlier: int
    step_s: float


def steps_of(profile: KinetoTrace) -> Steps:
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
    kernels: Sequence[TimedKernel], starts: list[float], end_s: float
) -> list[list[TimedKernel]]:
    """By when they were launched: the device may be a step behind the host."""
    cut: list[list[TimedKernel]] = [[] for _ in starts]
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


def _step_seconds(cut: Sequence[Sequence[TimedKernel]]) -> float:
    if not cut:
        return 0.0
    starts = [each[0].start_s for each in cut]
    if len(starts) > 1:
        return float(np.median(np.diff(starts)))
    return max(kernel.end_s for kernel in cut[0]) - starts[0]
