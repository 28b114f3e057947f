"""What the emulated device cannot do: refused in words, not by a failure inside torch."""

from __future__ import annotations

from typing import Any

import torch

from trainscout.simulators.predictor.question.errors import InputError


class CUDAGraph:
    """Replaying recorded kernels is not emulated."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise InputError(
            "torch.cuda.CUDAGraph",
            "",
            "graph capture is not emulated",
            "a run without CUDA graphs",
        )


def install_refusals() -> None:
    """Refuse CUDA graphs. Once per process."""
    torch.cuda.CUDAGraph = CUDAGraph
    torch.cuda.graphs.CUDAGraph = CUDAGraph
