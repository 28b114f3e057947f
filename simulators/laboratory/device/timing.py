"""Seconds of one call on a device: warm, repeated, in bursts or long enough to heat up.

A ``Clock`` says how long a number of back-to-back calls take; the rest is arithmetic, the same
for a GPU, a CPU and the clock of a test.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError

Call = Callable[[], object]
Clock = Callable[[Call, int], float]
"""Seconds that a device takes for so many calls, one after another without gaps."""

WARM_UP_CALLS = 3
SAMPLES = 7
# Samples shorter than this are decided by the resolution of the events.
SAMPLE_S = 2e-3
MOST_CALLS = 500
# Boards reach their power limit after some hundred milliseconds.
SUSTAINED_S = 0.4
# A generous bound of what the host needs to launch one call, autograd's backward among them.
LAUNCH_S = 50e-6
_TICKS_PER_S = 2e9


def burst_s(clock: Clock, call: Call) -> float:
    """Seconds of one call on a cool device: median of ``SAMPLES`` after a warm-up."""
    clock(call, WARM_UP_CALLS)
    count = calls_for(SAMPLE_S, clock(call, 1))
    return statistics.median(clock(call, count) / count for _ in range(SAMPLES))


def sustained_s(clock: Clock, call: Call, once_s: float) -> float:
    """Seconds of one call in a run of ``SUSTAINED_S``: mean of its second half.

    ``once_s`` is about what one call takes.
    """
    count = calls_for(SUSTAINED_S / 20, once_s)
    samples: list[float] = []
    while sum(samples) * count < SUSTAINED_S:
        samples.append(clock(call, count) / count)
    return statistics.fmean(samples[len(samples) // 2 :])


def calls_for(seconds: float, once_s: float) -> int:
    """How many calls of ``once_s`` fill ``seconds``, at least one and at most ``MOST_CALLS``."""
    return max(1, min(MOST_CALLS, math.ceil(seconds / max(once_s, 1e-9))))


def cuda_clock(torch: Any, call: Call, count: int) -> float:
    """By CUDA events around calls that were all launched before the first one starts."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # The device spins while the host launches, or short kernels would wait for it.
    torch.cuda._sleep(int(count * LAUNCH_S * _TICKS_PER_S))
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def host_clock(call: Call, count: int) -> float:
    """By the host's; for trying a measurement on a CPU, whose figures are not worth keeping."""
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - begin


def open_torch(device: str) -> tuple[Any, Clock]:
    """PyTorch and the clock of ``cuda`` or ``cpu``.

    Raises:
        InputError: when PyTorch is not installed or sees no such device.
    """
    try:
        import torch
    except ImportError as error:
        problem = "needs PyTorch: pip install -e '.[gp]'"
        raise InputError("--device", device, problem) from error
    if device == "cpu":
        return torch, host_clock
    if device != "cuda" or not torch.cuda.is_available():
        raise InputError("--device", device, "is not there", "cuda, or cpu to try the command")
    return torch, functools.partial(cuda_clock, torch)


LAUNCHES = 1000


def host_seconds(torch: Any, device: str) -> dict[str, float]:
    """``launch_s``: of one small operation, called from Python, with gradients recorded;
    ``module_s``: of one linear module. The kernels are shorter than their launches, so that the
    host is what takes the time."""
    x = torch.ones(16, 16, device=device, requires_grad=True)
    module = torch.nn.Linear(16, 16, device=device)
    found = {}
    for name, call in (("launch_s", lambda: x + x), ("module_s", lambda: module(x))):
        host_clock(call, LAUNCHES)
        samples = [host_clock(call, LAUNCHES) / LAUNCHES for _ in range(SAMPLES)]
        found[name] = statistics.median(samples)
        if device != "cpu":
            torch.cuda.synchronize()
    return found


class Rows:
    """A table of a file with several, kept in memory; ``saved`` is told of every new row.

    ``key`` names the columns that say what was measured; a row whose key is there already is
    not to be measured again (``in``).
    """

    def __init__(
        self,
        path: Path,
        key: Sequence[str],
        rows: list[dict[str, object]],
        saved: Callable[[], None],
    ) -> None:
        self.path, self._key, self.rows, self._saved = path, tuple(key), rows, saved
        self._seen = {self._of(row) for row in rows}

    def __contains__(self, row: Mapping[str, object]) -> bool:
        return self._of(row) in self._seen

    def append(self, row: Mapping[str, object]) -> None:
        self.rows.append(dict(row))
        self._seen.add(self._of(row))
        self._saved()

    def _of(self, row: Mapping[str, object]) -> tuple[str, ...]:
        return tuple(str(row.get(name, "")) for name in self._key)
