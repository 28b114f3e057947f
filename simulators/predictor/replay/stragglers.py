"""How much longer computation takes because a step waits for its slowest GPU.

GPUs of one kind differ in speed: silicon, cooling and power delivery set what clock each holds
under load. Every step all ranks meet (gradient norm, data-parallel reduction), and within it
tensor-parallel ranks meet in every layer and stages at every message, so the job runs at the
speed of the slowest rank. With speeds spread normally around the figure that kernels are priced
at, the slowest of ``n`` is expected ``spread x E[max of n standard normals]`` behind.
"""

from __future__ import annotations

import functools
from statistics import NormalDist


@functools.cache
def slowest_excess(ranks: int, spread: float) -> float:
    """Extra time of the slowest of ``ranks`` GPUs, as a share of the average one's time.

    ``spread``: the standard deviation of speeds (``Architecture.speed_spread``). The expected
    maximum by Blom's approximation, ``quantile((n - 3/8) / (n + 1/4))``: exact to
    2 % of itself for more than three. One GPU is as fast as it was priced.
    """
    if ranks <= 1:
        return 0.0
    return spread * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
