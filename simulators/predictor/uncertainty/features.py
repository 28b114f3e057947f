"""What makes two predictions alike, so that the error of one says something about the other."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.kernels.uncertainty import kernel_uncertainty
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.training import PRECISION_BITS

from .fabric import fabric_error

_SHORTEST_LAYER_S = 1e-6

LAUNCH_BOUND = 0.05
"""Share of a step spent waiting for the host from which it counts as launch-bound."""

# How far apart two predictions are for differing in one of these. A few rounded settings were
# compared by coverage and interval score of runs left out; finer ones change little.
KINDS: Mapping[str, float] = {
    "gpu": 1.0,
    "architecture": 1.0,
    "vendor": 1.5,
    "bits": 1.0,
    "moe": 1.5,
    "attention": 1.0,
    "fusion": 1.0,
    "framework": 2.0,
    "fabric": 0.5,
}
# The difference in these that counts as one unit of distance.
_GPU_DOUBLINGS = 2.0
_LAYER_DECADES = 0.5
_COMMUNICATION_SHARE = 0.15
_HOST_SHARE = 0.15


@dataclass(frozen=True)
class Features:
    """One prediction as the error bar sees it.

    ``bits`` of the matrix multiplications; ``moe``: whether the model has experts;
    ``attention`` as in ``Job``, ``fusion`` as in ``Framework``. ``layer_s``: kernel seconds of
    one layer and micro-batch, all passes (small ones are bound by launches, and by the shape of
    their GEMMs). ``communication_share``: share of the step that is exposed communication,
    ``host_share``: share of it that waits for the host to launch.
    ``framework`` as declared, a name of its own where it was not; ``fabric``: what the slowest
    communication crosses, with the Gb/s of one GPU's share, ``node`` inside an NVLink domain.
    ``kernel_error``: typical relative error of a GEMM's price on this GPU, larger where
    coefficients are on loan; ``fabric_error`` that of a step over a network that nobody measured,
    ``slow_fabric_error`` to its slower side; none makes two predictions less alike.
    """

    gpu: str
    architecture: str
    vendor: str
    bits: int
    moe: bool
    num_gpus: int
    attention: str
    fusion: str
    framework: str
    fabric: str
    layer_s: float
    communication_share: float
    host_share: float
    kernel_error: float
    fabric_error: float
    slow_fabric_error: float


def features_of(
    job: Job, step_time_s: float, breakdown_s: Mapping[str, float], slow_s: float = 0.0
) -> Features:
    """The features of a job's prediction; seconds as in ``Prediction``, ``slow_s`` as in
    ``fabric_error``."""
    layers = job.model.num_layers / job.recipe.pp * job.num_micro_batches
    bits = PRECISION_BITS[job.precision]
    communication_s = sum(s for part, s in breakdown_s.items() if part.endswith("_communication"))
    return Features(
        gpu=job.gpu.name,
        architecture=job.gpu.architecture.name,
        vendor=job.gpu.architecture.vendor,
        bits=bits if bits <= 16 else 32,
        moe=job.model.moe is not None,
        num_gpus=job.world_size,
        attention=job.attention,
        fusion=job.framework.fusion,
        framework=job.framework.software,
        fabric=_fabric(job.cluster),
        layer_s=max(breakdown_s.get("compute", 0.0) / layers, _SHORTEST_LAYER_S),
        communication_share=communication_s / step_time_s,
        host_share=breakdown_s.get("host", 0.0) / step_time_s,
        kernel_error=_kernel_error(job.gpu, bits),
        fabric_error=fabric_error(job, step_time_s, breakdown_s),
        slow_fabric_error=fabric_error(job, step_time_s, breakdown_s, slow_s),
    )


def _fabric(cluster: Cluster) -> str:
    if cluster.num_nodes == 1 or cluster.nvlink_domain == cluster.num_gpus:
        return "node"
    kind = cluster.fabric if cluster.network_validated else f"unvalidated {cluster.fabric}"
    return f"{kind} {cluster.nics_per_node * cluster.nic_gbps / cluster.gpus_per_node:g}"


@functools.lru_cache(maxsize=256)
def _kernel_error(gpu: Gpu, bits: int) -> float:
    errors = kernel_uncertainty(gpu)
    return errors.get(f"gemm_fp{bits}", errors["gemm"])


def kinds_of(features: Features) -> tuple[str, ...]:
    """The values that are alike or not, in the order of ``KINDS``."""
    return tuple(str(getattr(features, name)) for name in KINDS)


SIZES = ("num_gpus", "layer_s", "communication_share", "host_share")
"""The values that are more or less alike."""


def distances(
    num_gpus: float, layer_s: float, communication_share: float, host_share: float
) -> tuple[float, ...]:
    """Values of ``SIZES``, each in its own unit of distance."""
    return (
        math.log2(num_gpus) / _GPU_DOUBLINGS,
        math.log10(layer_s) / _LAYER_DECADES,
        communication_share / _COMMUNICATION_SHARE,
        host_share / _HOST_SHARE,
    )


def sizes_of(features: Features) -> tuple[float, ...]:
    """``distances`` of one prediction."""
    return distances(*(getattr(features, name) for name in SIZES))


_PENALTIES = np.array([distance**2 for distance in KINDS.values()])


def unlike(kinds: NDArray[np.int64], of_kinds: NDArray[np.int64]) -> NDArray[np.float64]:
    """What of the squared distances from each of ``n`` predictions to one is for their kinds.

    ``kinds`` (9, n) are codes of ``kinds_of``; those of the one have shape (9, 1).
    """
    squared: NDArray[np.float64] = _PENALTIES @ (kinds != of_kinds)
    return squared


def similarity(
    unlike: NDArray[np.float64], sizes: NDArray[np.float64], of_sizes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """``exp(-d^2 / 2)`` of the distances ``d`` from each of ``n`` predictions to one.

    ``unlike`` (n,) as above, ``sizes`` (4, n) columns of ``sizes_of``; the one's have shape
    (4, 1).
    """
    squared = unlike + ((sizes - of_sizes) ** 2).sum(axis=0)
    weights: NDArray[np.float64] = np.exp(-0.5 * squared)
    return weights
