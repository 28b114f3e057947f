"""Kernels of an architecture that nobody has fitted: those of the median architecture.

Every coefficient is the median over the architectures with fits, of each the median over its
GPUs; times then follow from the GPU's own rates, SMs and bandwidth. No fitted GPU stands in for
it, and all it prices is *estimated*.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from trainscout.simulators.predictor.kernels.coefficients import (
    AttentionCoefficients,
    FittedGpu,
    GemmCoefficients,
    fitted_gpus,
)
from trainscout.simulators.predictor.question.gpu import Gpu


@functools.lru_cache(maxsize=64)
def median_architecture(gpu: Gpu) -> FittedGpu:
    """The median architecture as a fit that a GPU may borrow: of those with all kernels fitted."""
    return median_of((fit for fit in fitted_gpus() if fit.attention), gpu)


def median_of(fits: Iterable[FittedGpu], gpu: Gpu) -> FittedGpu:
    """The median of some fits, as shares of the peaks of a GPU and with its architecture's tiles.

    Everything counts as transferred, so that no price is better than *estimated*.
    """
    middle = _median([(fit.architecture, _coefficients(fit)) for fit in fits])
    tiles = gpu.architecture.gemm_tiles
    gemm = {}
    for precision, values in middle["gemm"].items():
        known = values["tile_efficiency"]
        shares = {tile: known[tile] for tile in tiles if tile in known} or known
        gemm[precision] = GemmCoefficients(**{**values, "tile_efficiency": shares})
    attention = {
        section: {
            precision: {name: AttentionCoefficients(**values) for name, values in passes.items()}
            for precision, passes in sets.items()
        }
        for section, sets in middle["attention"].items()
    }
    measured = [("gemm", precision) for precision in gemm]
    measured += [(section, precision) for section in attention for precision in attention[section]]
    return FittedGpu(
        name="the median architecture",
        architecture=gpu.architecture.name,
        sms=gpu.sms,
        peak_flops=gpu.peak_flops,
        gemm=gemm,
        attention=attention,
        sustained_fraction=middle["sustained_fraction"],
        transferred=frozenset(measured),
    )


def _coefficients(fit: FittedGpu) -> dict[str, Any]:
    values = dataclasses.asdict(fit)
    return {name: values[name] for name in ("gemm", "attention", "sustained_fraction")}


def _median(found: Sequence[tuple[str, Any]]) -> Any:
    """Entry by entry of nested mappings, the median over architectures of those over GPUs."""
    if isinstance(found[0][1], Mapping):
        names = dict.fromkeys(name for _, entries in found for name in entries)
        return {
            name: _median([(of, entries[name]) for of, entries in found if name in entries])
            for name in names
        }
    by_architecture = defaultdict(list)
    for architecture, value in found:
        by_architecture[architecture].append(value)
    return median(median(values) for values in by_architecture.values())
