"""Bytes of the tensors of one kernel."""

from __future__ import annotations

import pytest

from trainscout.simulators.predictor.kernels.moved_bytes import moved_bytes
from trainscout.simulators.predictor.workload import ir


@pytest.mark.parametrize(
    ("kernel", "moved"),
    [
        (ir.Gemm("a", 3, 5, 7, "bf16"), 2 * (21 + 35 + 15)),
        (ir.Gemm("a", 3, 5, 7, "fp32"), 4 * (21 + 35 + 15)),
        # Operands of 8 bits, a result of 16.
        (ir.Gemm("a", 3, 5, 7, "fp8"), 21 + 35 + 2 * 15),
        # The main gradient is read and written in fp32.
        (ir.Gemm("a", 3, 5, 7, "bf16", accumulate=4), 2 * (21 + 35) + 8 * 15),
        (ir.Gemm("a", 3, 5, 7, "fp8", accumulate=2), 1 * (21 + 35) + 4 * 15),
        (ir.GroupedGemm("a", 4, 3, 5, 7, "bf16"), 4 * 2 * (21 + 35 + 15)),
        # A weight gradient sums over the three rows of a group: 7 x 3 times 3 x 5.
        (ir.GroupedGemm("a", 4, 3, 5, 7, "bf16", layout="NT"), 4 * 2 * (21 + 15 + 35)),
        (ir.Streaming("a", "elementwise", 4096), 4096),
        # Queries and results of 8 heads, keys and values of 2.
        (
            ir.Attention("a", 1, 8, 2, 16, 32, 64, 64, False, "fwd", "bf16"),
            2 * (2 * 8 * 16 * 64 + 2 * 2 * 32 * 64),
        ),
        (
            ir.Attention("a", 1, 8, 2, 16, 32, 64, 64, False, "bwd", "bf16"),
            4 * (2 * 8 * 16 * 64 + 2 * 2 * 32 * 64),
        ),
        (ir.Convolution("a", 1, 3, 8, (4, 4), (1, 1), "bf16"), 2 * (48 + 24 + 128)),
    ],
)
def test_each_tensor_once(kernel: ir.Kernel, moved: int) -> None:
    assert moved_bytes(kernel) == moved
