"""Bytes of the tensors that one kernel reads and writes, each once."""

from __future__ import annotations

from trainscout.simulators.predictor.workload.ir import (
    Attention,
    Convolution,
    Kernel,
    Streaming,
    product_sizes,
)

from .convolution import convolution_elements
from .gemm import ELEMENT_BYTES

# Results of 8-bit operands have 16 bits.
_LEAST_RESULT_BYTES = 2


def moved_bytes(kernel: Kernel) -> int:
    """What a kernel has to move between memory and chip at least, in bytes.

    A backward attention reads queries, keys, values, the result and its gradient, and writes
    three gradients.
    """
    if isinstance(kernel, Streaming):
        return kernel.bytes
    element = ELEMENT_BYTES[kernel.dtype]
    if isinstance(kernel, Convolution):
        return int(element * sum(convolution_elements(kernel)))
    if isinstance(kernel, Attention):
        queries = kernel.batch * kernel.heads * kernel.seq_q
        keys = kernel.batch * kernel.kv_heads * kernel.seq_k
        once = (queries + keys) * (kernel.head_dim + kernel.head_dim_v)
        return int(element * once * (2 if kernel.pass_ == "bwd" else 1))
    # What a result is added into is read and written.
    result = 2 * kernel.accumulate or max(element, _LEAST_RESULT_BYTES)
    m, n, k, count = product_sizes(kernel)
    return int(count * (element * k * (m + n) + result * m * n))
