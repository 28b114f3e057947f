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
    moved,
    on_device,
    precision,
    short_name,
    tensor,
)
from trainscout.simulators.virtual_cluster.traces.vocabulary import item_bytes

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


def _product(op: Op, first: int, *more: Gemm | Streaming) -> Lowered:
    """The argument at ``first`` times the one behind it, transposed, both 8-bit, and what else
    runs behind it."""
    x, weight = tensor(op, first), tensor(op, first + 1)
    rows = math.prod(x.shape[:-1])
    if not (rows and elements(weight)):
        return FREE
    kernel = Gemm(short_name(op), rows, weight.shape[0], weight.shape[1], precision(x))
    return Lowered((kernel, *more), RULE, estimated=True)


def int8_linear_matmul(op: Op) -> Lowered:
    """``int8_linear_matmul(x, weight)``."""
    return _product(op, 0)


def _scaled(op: Op) -> Streaming:
    """A kernel of its own that reads the sums, 32 bits each, and writes them scaled."""
    out = op.outputs[0]
    return Streaming(f"{short_name(op)}_scale", "cast", elements(out) * (4 + item_bytes(out)))


def int8_scaled_mm(op: Op) -> Lowered:
    """``int8_scaled_mm(x, weight, row_stats, col_stats, ...)``."""
    return _product(op, 0, _scaled(op))


def int8_mixed_scaled_mm(op: Op) -> Lowered:
    """``int8_mixed_scaled_mm(x, x_8, weight, ...)``: columns with large values are multiplied once
    more, in the type of ``x`` (Dettmers et al. 2022, LLM.int8(), section 3.2)."""
    outliers = op.outputs[1].shape[-1] if len(op.outputs) > 1 else 0
    if not outliers:
        return _product(op, 1, _scaled(op))
    x, n = tensor(op, 0), op.outputs[0].shape[-1]
    rows = math.prod(x.shape[:-1])
    again = Gemm(f"{short_name(op)}_outliers", rows, n, outliers, precision(x))
    return _product(op, 1, _scaled(op), again)


TABLE = {
    "bitsandbytes.gemm_4bit": gemm_4bit,
    "bitsandbytes.int8_linear_matmul": int8_linear_matmul,
    "bitsandbytes.int8_mixed_scaled_mm": int8_mixed_scaled_mm,
    "bitsandbytes.int8_scaled_mm": int8_scaled_mm,
}
