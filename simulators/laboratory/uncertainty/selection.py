"""What choosing by prediction costs, from published sweeps of several layouts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from statistics import median

import numpy as np

from trainscout.simulators.predictor.uncertainty.fastest import Selection

# Of a normal distribution: its standard deviation over its median absolute deviation.
_MAD = 1.4826


def effects(
    runs: Sequence[tuple[str, Hashable, Hashable, float, float]],
) -> dict[str, list[float]]:
    """By publication, for each sweep of two layouts or more: the logarithm of measured over
    predicted step time of the predicted-best layout, less the mean of that over all.

    Args:
        runs: publication, sweep, layout, predicted and measured seconds of each run.
    """
    sweeps: dict[tuple[str, Hashable], dict[Hashable, list[tuple[float, float]]]] = {}
    for publication, sweep, layout, predicted_s, measured_s in runs:
        layouts = sweeps.setdefault((publication, sweep), {})
        layouts.setdefault(layout, []).append((math.log(predicted_s), math.log(measured_s)))
    found: dict[str, list[float]] = defaultdict(list)
    for (publication, _), layouts in sweeps.items():
        if len(layouts) < 2:
            continue
        predicted, measured = np.array([np.mean(each, axis=0) for each in layouts.values()]).T
        residuals = measured - predicted
        found[publication].append(float(residuals[predicted.argmin()] - residuals.mean()))
    return dict(found)


def selection_of(found: Mapping[str, Sequence[float]]) -> Selection:
    """What choosing costs in a publication that is not among those found.

    Each publication is one observation, the mean of its sweeps; what is told of the next one is
    their median, with its standard error by their median absolute deviation: one sweep whose
    software is predicted badly does not decide.
    """
    means = [float(np.mean(each)) for each in found.values()]
    if not means:
        return Selection()
    middle = median(means)
    spread = _MAD * median(abs(mean - middle) for mean in means)
    return Selection(
        shift=round(max(0.0, middle), 4),
        error=round(math.sqrt(math.pi / 2) * spread / math.sqrt(len(means)), 4),
        publications=len(means),
        sweeps=sum(map(len, found.values())),
    )


def held_out(found: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    """For each publication the shift that the others tell, and what its own sweeps had."""
    return {
        name: (
            selection_of({other: each for other, each in found.items() if other != name}).shift,
            float(np.mean(own)),
        )
        for name, own in found.items()
    }
