"""What kernels compute, whatever it takes."""

from __future__ import annotations

from trainscout.simulators.predictor.workload.ir import (
    Attention,
    Convolution,
    Gemm,
    GroupedGemm,
    Kernel,
)


def kernel_flops(kernel: Kernel) -> int:
    """2 x multiplications of a kernel; 0 for memory-bound ones."""
    if isinstance(kernel, Gemm):
        return 2 * kernel.batch * kernel.m * kernel.n * kernel.k
    if isinstance(kernel, GroupedGemm):
        return 2 * kernel.groups * kernel.m_per_group * kernel.n * kernel.k
    if isinstance(kernel, Convolution):
        return kernel.flops
    if isinstance(kernel, Attention):
        heads = kernel.batch * kernel.heads * kernel.seq_q * kernel.seq_k
        forward = 2 * heads * (kernel.head_dim + kernel.head_dim_v) // (2 if kernel.causal else 1)
        return forward * 5 // 2 if kernel.pass_ == "bwd" else forward
    return 0
