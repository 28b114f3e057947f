"""Measured kernels beside the prices of their shapes: factors by class."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import Attention, Convolution, Kernel, Streaming

from .prices import price_kernels

FloatArray = NDArray[np.float64]

_STREAMING = {
    "norm_fwd": "norm", "norm_bwd": "norm", "norm_fwd_plain": "norm", "norm_bwd_plain": "norm",
    "softmax_fwd": "softmax", "softmax_bwd": "softmax", "embedding_bwd": "embedding",
    "activation": "elementwise", "cast": "elementwise", "dropout": "elementwise",
    "permute": "copy", "token_permute": "copy", "memcpy": "copy",
}  # fmt: skip


@dataclass(frozen=True)
class ObservedClass:
    """Kernels of one class: all of ``seconds`` a step; of these with known shapes that ran alone,
    ``measured_s``, what they are priced at, and how much the ratio of the two scatters from shape
    to shape (standard deviation of its logarithm, shapes by their seconds; 0 for one shape)."""

    seconds: float
    operations: int
    measured_s: float
    priced_s: float
    shapes: int
    log_spread: float

    @property
    def factor(self) -> float | None:
        """Measured over priced; None where nothing could be priced."""
        return self.measured_s / self.priced_s if self.priced_s else None


def profiled_class(kernel: Kernel) -> str:
    """What a profiler's kernels of such an operation are classed as."""
    if isinstance(kernel, Streaming):
        return _STREAMING.get(kernel.kind, kernel.kind)
    if isinstance(kernel, Attention):
        return "attention"
    return "convolution" if isinstance(kernel, Convolution) else "gemm"


def observe(
    gpu: Gpu,
    alone: Iterable[tuple[tuple[Kernel, ...], float, int]],
    seconds: float,
    operations: int,
    steps: int,
) -> ObservedClass:
    """A class of which ``operations`` took ``seconds`` in ``steps``, from operations that ran
    alone: what each amounts to, its seconds, and how many calls took these."""
    times: dict[tuple[Kernel, ...], list[float]] = defaultdict(list)
    calls: Counter[tuple[Kernel, ...]] = Counter()
    for kernels, took_s, count in alone:
        times[kernels].append(took_s)
        calls[kernels] += count
    prices = {kernels: price_of(gpu, kernels) for kernels in times}
    known = [kernels for kernels in times if prices[kernels] and statistics.median(times[kernels])]
    logs = np.log([statistics.median(times[each]) / prices[each] for each in known])
    weights = np.array([calls[each] * prices[each] for each in known])
    return ObservedClass(
        seconds / steps,
        operations,
        sum(calls[each] * statistics.fmean(times[each]) for each in known) / steps,
        float(weights.sum()) / steps,
        len(known),
        _spread(logs, weights),
    )


def _spread(logs: FloatArray, weights: FloatArray) -> float:
    """The standard deviation of values by their weights; 0 of none."""
    if not len(logs):
        return 0.0
    middle = np.average(logs, weights=weights)
    return float(np.sqrt(np.average((logs - middle) ** 2, weights=weights)))


def price_of(gpu: Gpu, kernels: Sequence[Kernel]) -> float:
    """Seconds of kernels; 0 for a precision that the GPU has not, and sizes that are none."""
    try:
        seconds = float(price_kernels(gpu, kernels).seconds.sum())
    except (InputError, ArithmeticError, ValueError):
        return 0.0
    return seconds if 0 < seconds < math.inf else 0.0
