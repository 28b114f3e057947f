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

# Standard deviation of a GPU's speed as a share of it. Ampere and older hold their clocks in
# training (bursts and long runs of matrix products agree within 2 % on A100), and 1 % brings the
# published A100 runs of 32 to 3072 GPUs to a bias of 0. Hopper and Blackwell run at their power
# limit, where each chip's leakage sets its clock: 31 weak-scaling families of
# NVIDIA/dgxc-benchmarking on 16 to 2048 H100 lose 1.9 % of a step (median; quartiles 1.2 and 3.3)
# for every unit of the expected maximum beyond what communication explains. Surveys of whole
# machines find 8 % between their GPUs on average, outliers included (Sinha et al. 2022, arXiv
# 2208.11035); operators replace those.
SPEED_SPREAD = {"volta": 0.01, "ampere": 0.01, "hopper": 0.02, "blackwell": 0.02}


@functools.cache
def slowest_excess(ranks: int, architecture: str) -> float:
    """Extra time of the slowest of ``ranks`` GPUs, as a share of the average one's time.

    The expected maximum by Blom's approximation, ``quantile((n - 3/8) / (n + 1/4))``: exact to
    2 % of itself for more than three. One GPU is as fast as it was priced.
    """
    if ranks <= 1:
        return 0.0
    return SPEED_SPREAD[architecture] * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
