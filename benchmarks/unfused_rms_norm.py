"""Runs a module with RMSNorm in elementwise kernels, as PyTorch of 2024 launched it.

    python -m benchmarks.unfused_rms_norm torchtitan.train ARGS

Published runs of that time are of those kernels; PyTorch 2.13 has one kernel for them.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """``torch.nn.functional.rms_norm`` by its definition, in fp32 inside."""
    dimensions = tuple(range(-len(shape), 0))
    wide = x.float()
    variance = wide.pow(2).mean(dimensions, keepdim=True)
    scale = torch.rsqrt(variance + (torch.finfo(x.dtype).eps if eps is None else eps))
    normalised = (wide * scale).to(x.dtype)
    return normalised if weight is None else normalised * weight


if __name__ == "__main__":
    functional.rms_norm = rms_norm
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
