"""Time of memory-bound kernels: bytes over the bandwidth their class reaches, plus launches.

    time = launches x launch floor + bytes / (bandwidth x share)

``streaming.yaml`` holds each class's share of the declared DRAM bandwidth, with its source.
Tensors of at most half the L2 need not wait for DRAM: what an elementwise kernel loses there
is given back (A100 additions of 10-30 MB run at 2032 of 2039 GB/s against 1723 for large
ones, microsoft/vidur), but never more than the declared bandwidth, so the roofline holds.
"""

from __future__ import annotations

import functools
from importlib import resources

import numpy as np
import yaml
from numpy.typing import NDArray

from simulators.errors import require_choice
from simulators.job import Gpu
from simulators.kernels.gemm import Floats
from simulators.prediction import Evidence

# The smallest graph-replayed kernels take 1.5-2.5 us (ai-dynamo/aiconfigurator tables).
LAUNCH_FLOOR_S = 2e-6


@functools.cache
def _classes(architecture: str) -> dict[str, tuple[float, bool]]:
    """Bandwidth share and whether it was measured, by kernel class."""
    file = resources.files("simulators.kernels") / "streaming.yaml"
    content = yaml.load(file.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    require_choice("gpu.architecture", architecture, content)
    return {
        kind: (float(entry["value"]), bool(entry["measured"]))
        for kind, entry in content[architecture].items()
    }


def price_streaming(
    gpu: Gpu, kinds: list[str], sizes: NDArray[np.int64]
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Seconds, DRAM share and whether the class was measured, each of shape (ops,).

    ``sizes`` has shape (ops, 2): bytes and launches.

    Raises:
        InputError: for an unknown kernel class.
    """
    classes = _classes(gpu.architecture)
    try:
        share, measured = np.array([classes[kind] for kind in kinds]).T
    except KeyError as error:
        require_choice("streaming.kind", error.args[0], classes)
        raise
    best = classes["elementwise"][0]
    moved, launches = sizes.T.astype(np.float64)
    share = np.where(moved <= gpu.l2_bytes / 2, np.minimum(share / best, 1.0), share)
    floor = launches * LAUNCH_FLOOR_S
    seconds = floor + moved / (gpu.memory_bandwidth_bytes_per_s * share)
    # A kernel far below the reachable bandwidth leaves the rest of it to others.
    reachable = gpu.memory_bandwidth_bytes_per_s * best
    pressure = np.minimum(moved / (reachable * seconds), 1.0)
    return seconds, pressure, measured > 0


def streaming_evidence(measured: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Evidence codes: a measured class is a fitted price (one share for all sizes)."""
    order = list(Evidence)
    fitted, estimated = order.index(Evidence.FITTED), order.index(Evidence.ESTIMATED)
    codes: NDArray[np.int8] = np.where(measured, fitted, estimated).astype(np.int8)
    return codes
