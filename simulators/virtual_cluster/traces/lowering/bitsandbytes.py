"""Products with quantised weights, by the operations that bitsandbytes declares to torch.

Its other operations (quantising, 8-bit optimizer steps) go over their tensors once.
"""

from __future__ import annotations

import math

from trainscout.simulators.predictor.workload.ir import Gemm, Streaming
from trainscout.simulators.virtual_cluster.traces.events import Op
from trainscout.simulators.virtual_cluster.traces.lowering.lowered import FREE, Lowered
from trainscout.simulators.virtual_cluster.traces.lowering.tensors import (
    elements,
    integers,
    item_bytes,
    moved,
    on_device,
    precision,
    short_name,
    tensor,
)

RULE = "quantised product"


def gemm_4bit(op: Op) -> Lowered:
    """``gemm_4bit(x, weight, weight_shape, absmax, ...)``: the weight is made 16-bit, then
    multiplied. No timing of the kernel that does both is published."""
    x = tensor(op, 0)
    n, k = integers(op, 2, 2)
    rows = elements(x) // k if k else 0
    if not (rows and n):
        return FREE
    weight_bytes = n * k * item_bytes(x)
    made = moved(on_device(op.inputs[1:])) + weight_bytes
    kernels = (
        Streaming(f"{short_name(op)}_dequantise", "cast", made),
        Gemm(short_name(op), rows, n, k, precision(x)),
    )
    return Lowered(kernels, RULE, estimated=True)


def int8_linear_matmul(op: Op) -> Lowered:
    """``int8_linear_matmul(x, weight)``: both 8-bit, ``x W^T``."""
    x, weight = tensor(op, 0), tensor(op, 1)
    rows = math.prod(x.shape[:-1])
    if not (rows and elements(weight)):
        return FREE
    kernel = Gemm(short_name(op), rows, weight.shape[0], weight.shape[1], precision(x))
    return Lowered((kernel,), RULE, estimated=True)


TABLE = {
    "bitsandbytes.gemm_4bit": gemm_4bit,
    "bitsandbytes.int8_linear_matmul": int8_linear_matmul,
}
