"""Small tables of slowdowns that follow a law the test knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.simulators.predictor.collectives.machines import H100
from trainscout.simulators.predictor.interference.overlap import KERNEL_CLASSES, overlap_slowdowns

HEADER = (
    "gpu,compute_class,comm_kind,slowdown,level,source,t_alone_us,channels,comm_bytes_per_s,"
    "memory_throughput"
)


def write_table(path: Path, law: Callable[[str, float], float], sources: int = 4) -> Path:
    """Kernels of two classes beside all-gathers on H100, ``law(class, physical)`` slower."""
    random = np.random.default_rng(0)
    lines = [HEADER]
    for source in range(sources):
        for kernel_class, bound in (("GEMM", 0.2), ("elementwise", 0.9)):
            for _ in range(15):
                channels = int(random.integers(4, 24))
                traffic = float(random.uniform(5e10, 6e11))
                kernel_s = np.zeros((1, 2, len(KERNEL_CLASSES)))
                kind = {"GEMM": "gemm", "elementwise": "streaming"}[kernel_class]
                kernel_s[0, :, KERNEL_CLASSES.index(kind)] = 1.0, bound
                physical, _ = overlap_slowdowns(
                    H100, kernel_s, np.array([channels]), np.array([traffic])
                )
                slowdown = law(kernel_class, float(physical[0, 0]))
                lines.append(
                    f"H100,{kernel_class},all-gather,{slowdown},kernel,lab {source},100,"
                    f"{channels},{traffic},{bound}"
                )
    path.write_text("\n".join(lines) + "\n")
    return path
