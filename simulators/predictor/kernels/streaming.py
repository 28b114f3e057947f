"""Time of memory-bound kernels: bytes over the bandwidth their class reaches, plus launches.

    time = launches x launch floor + bytes / (bandwidth x share)

Shares and floors are fitted per GPU and class where tables hold them (``fitted/*.yaml``); the
other classes take the share that the architecture declares, with its source.
Tensors of at most half the L2 need not wait for DRAM: kernels that do nothing but move bytes
then reach the declared bandwidth (A100 additions of 10-30 MB run at 2032 of 2039 GB/s against
1723 for large ones, microsoft/vidur), and never more, so the roofline holds. Gathers, rotary
embeddings, activations and norms of the same tables gain nothing there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.errors import require_choice
from trainscout.simulators.predictor.question.gpu import Gpu

from .coefficients import StreamingCoefficients, fitted_gpus
from .gemm import Floats

# The smallest graph-replayed kernels take 1.5-2.5 us (ai-dynamo/aiconfigurator tables).
LAUNCH_FLOOR_S = 2e-6
MOVES_BYTES = frozenset({"elementwise", "dropout", "optimizer", "memcpy", "reduce"})
# Fits serve GPUs of the architecture whose memory is as fast: A800 and A100, H800 and H100.
SAME_MEMORY_TOLERANCE = 0.03


@functools.lru_cache(maxsize=256)
def streaming_classes(gpu: Gpu) -> Mapping[str, StreamingCoefficients]:
    """Every class's coefficients on one GPU: its own fits over those of GPUs alike over the
    architecture's shares."""
    classes = {
        kind: StreamingCoefficients(share.value, LAUNCH_FLOOR_S, share.measured)
        for kind, share in gpu.architecture.streaming.items()
    }
    alike = [
        fit
        for fit in fitted_gpus(gpu.architecture.name)
        if fit.streaming
        and abs(math.log(gpu.memory_bandwidth_bytes_per_s / fit.memory_bandwidth_bytes_per_s))
        <= SAME_MEMORY_TOLERANCE
    ]
    for fit in sorted(alike, key=lambda fit: (fit.name == gpu.name, fit.name)):
        classes.update(fit.streaming)
    return classes


def streaming_seconds(
    moved: Floats,
    launches: Floats | float,
    share: Floats | float,
    launch_s: Floats | float,
    moves_bytes: NDArray[np.bool_] | bool,
    gpu: Gpu,
) -> Floats:
    """Seconds of kernels that move ``moved`` bytes; ``moves_bytes`` marks those fast in L2."""
    reached = np.where(moves_bytes & (moved <= gpu.l2_bytes / 2), 1.0, share)
    return launches * np.asarray(launch_s) + moved / (gpu.memory_bandwidth_bytes_per_s * reached)


def price_streaming(
    gpu: Gpu, kinds: Sequence[str], sizes: NDArray[np.int64]
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Seconds, DRAM share and whether the class was measured, each of shape (ops,).

    ``sizes`` has shape (ops, 2): bytes and launches.

    Raises:
        InputError: for an unknown kernel class.
    """
    classes = streaming_classes(gpu)
    try:
        chosen = [classes[kind] for kind in kinds]
    except KeyError as error:
        require_choice("streaming.kind", error.args[0], classes)
        raise
    share, launch_s, measured = np.array([(c.share, c.launch_s, c.measured) for c in chosen]).T
    moved, launches = sizes.T.astype(np.float64)
    moves_bytes = np.array([kind in MOVES_BYTES for kind in kinds])
    seconds = streaming_seconds(moved, launches, share, launch_s, moves_bytes, gpu)
    # A kernel far below the reachable bandwidth leaves the rest of it to others.
    reachable = gpu.memory_bandwidth_bytes_per_s * classes["elementwise"].share
    pressure = np.minimum(moved / (reachable * seconds), 1.0)
    return seconds, pressure, measured > 0
