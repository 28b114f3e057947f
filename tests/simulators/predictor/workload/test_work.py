"""Floating-point operations of kernels, by closed forms."""

from __future__ import annotations

import pytest

from trainscout.simulators.predictor.workload import ir


def attention(pass_: str, causal: bool) -> ir.Attention:
    return ir.Attention("core", 2, 8, 8, 1024, 1024, 64, 64, causal, pass_, "bf16")


@pytest.mark.parametrize(
    ("kernel", "flops"),
    [
        (ir.Gemm("a", 3, 5, 7, "bf16"), 210),
        (ir.Gemm("a", 3, 5, 7, "bf16", batch=4), 840),
        (ir.GroupedGemm("a", 4, 3, 5, 7, "bf16"), 840),
        (attention("fwd", causal=False), 2 * 2 * 8 * 1024 * 1024 * 128),
        (attention("fwd", causal=True), 2 * 8 * 1024 * 1024 * 128),
        # Five products where the forward pass has two.
        (attention("bwd", causal=True), 2 * 8 * 1024 * 1024 * 128 * 5 // 2),
        (ir.Convolution("a", 1, 3, 8, (4, 4), (1, 1), "bf16"), 2 * 16 * 3 * 8),
        (ir.Streaming("a", "elementwise", 4096), 0),
    ],
)
def test_two_for_each_multiplication(kernel: ir.Kernel, flops: int) -> None:
    assert ir.kernel_flops(kernel) == flops
