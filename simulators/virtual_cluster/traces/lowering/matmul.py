"""Matrix products, plain, batched, quantised and grouped.

Layouts from strides: a left operand whose rows (over k) lie side by side and a right one whose
columns do (a transposed weight) are a forward product, TN; both row by row an input gradient, NN;
a left operand transposed a weight gradient, NT.
"""

from __future__ import annotations

import math

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Gemm, GroupedGemm, Kernel, Streaming
from trainscout.simulators.virtual_cluster.traces.events import Op, TensorSpec
from trainscout.simulators.virtual_cluster.traces.vocabulary import item_bytes

from .tensors import (
    FREE,
    Lowered,
    contracted,
    elements,
    in_place,
    integers,
    keyword,
    moved,
    named,
    on_device,
    precision,
    short_name,
    tensor,
)

RULE = "gemm"
GROUPED_RULE = "grouped_gemm"


def mm(op: Op) -> Lowered:
    """``mm(a, b)``, ``bmm(a, b)``."""
    return product(op, tensor(op, 0), tensor(op, 1))


def addmm(op: Op) -> Lowered:
    """``addmm(c, a, b)``, ``baddbmm(c, a, b)``: a bias is added in the epilogue."""
    accumulate = item_bytes(tensor(op, 0)) if in_place(op) else 0
    return product(op, tensor(op, 1), tensor(op, 2), accumulate)


def product(op: Op, left: TensorSpec, right: TensorSpec, accumulate: int = 0) -> Lowered:
    """``left[.., m, k] right[.., k, n]`` with equal leading dimensions."""
    if len(left.shape) < 2 or len(right.shape) < 2 or left.shape[-1] != right.shape[-2]:
        shapes = f"{left.shape} x {right.shape}"
        raise InputError(f"trace.op[{op.name}].inputs", shapes, "is no matrix product")
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    batch = math.prod(left.shape[:-2])
    return gemm(op, m, n, k, precision(left), batch, layout_of(left, right), accumulate)


def gemm(
    op: Op,
    m: int,
    n: int,
    k: int,
    dtype: str,
    batch: int = 1,
    layout: str = "TN",
    accumulate: int = 0,
) -> Lowered:
    if not (m and n and k and batch):
        return FREE
    if dtype == "fp32" and keyword(op, "allow_tf32"):
        dtype = "tf32"
    kernel = Gemm(short_name(op), m, n, k, dtype, batch, layout, accumulate)
    return Lowered((kernel,), RULE)


def layout_of(left: TensorSpec, right: TensorSpec) -> str:
    """The layout of a product of two matrices, see above. Both transposed counts as TN."""
    if row_major(right):
        return "NN" if row_major(left) else "NT"
    return "TN"


def row_major(spec: TensorSpec) -> bool:
    """Whether the last dimension lies side by side in memory."""
    if spec.strides is None or spec.shape[-1] == 1:
        return True
    return spec.strides[-1] == 1


def linear(op: Op) -> Lowered:
    """``linear(x, weight, bias)``."""
    x, weight = tensor(op, 0), tensor(op, 1)
    rows = math.prod(x.shape[:-1])
    return gemm(op, rows, math.prod(weight.shape[:-1]), x.shape[-1], precision(x))


def matmul(op: Op) -> Lowered:
    """``matmul(a, b)`` before it is taken apart: vectors, matrices, broadcast batches."""
    left, right = tensor(op, 0), tensor(op, 1)
    if len(left.shape) < 2 or len(right.shape) < 2:
        return matrix_vector(op)
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    if len(right.shape) == 2:
        rows = math.prod(left.shape[:-1])
        return gemm(op, rows, n, k, precision(left), layout=layout_of(left, right))
    batch = elements(op.outputs[0]) // (m * n) if m and n else 0
    return gemm(op, m, n, k, precision(left), batch, layout_of(left, right))


def matrix_vector(op: Op) -> Lowered:
    """Products with vectors: memory-bound."""
    total = moved(on_device(op.inputs)) + moved(op.outputs)
    return Lowered((Streaming(short_name(op), "reduce", total),), RULE)


def scaled_mm(op: Op) -> Lowered:
    """``_scaled_mm(a, b, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum)``.

    8-bit operands are always passed TN. Forward products may keep their sums in the tensor
    cores (``use_fast_accum``); gradients do not, which is what distinguishes the passes.
    """
    left, right = tensor(op, 0), tensor(op, 1)
    fast = op.inputs[-1] is True or keyword(op, "use_fast_accum") is True
    m, k, n = left.shape[-2], contracted(left, left.shape[-1]), right.shape[-1]
    return gemm(op, m, n, k, precision(left), layout="TN" if fast else "NN")


def grouped_mm(op: Op) -> Lowered:
    """``_grouped_mm(a, b, offsets, ...)`` and its scaled form: one kernel for all groups.

    ``offsets`` cut rows of ``a`` (two dimensions, ``b`` three), columns of ``b`` (the reverse),
    or what is contracted (both two). How many each group gets only the device knows: equal shares.
    """
    left, right = tensor(op, 0), tensor(op, 1)
    a, b = left.shape, right.shape
    dtype, name = precision(left), short_name(op)
    kernel: Kernel
    if len(a) == 3 and len(b) == 3:
        return product(op, left, right)
    if len(a) == 2 and len(b) == 3:
        groups, n, k = b[0], b[2], a[1]
        layout = "NN" if row_major(right) else "TN"
        rows = a[0]
    elif len(a) == 3 and len(b) == 2:
        groups, n, k, layout, rows = a[0], a[1], a[2], "TN", b[1]
    else:
        groups = op.outputs[0].shape[0]
        n, k, layout, rows = a[0], b[1], "NT", a[1]
    if not (groups and n and k and rows):
        return FREE
    kernel = GroupedGemm(name, groups, -(-rows // groups), n, k, dtype, layout, one_kernel=True)
    return Lowered((kernel,), GROUPED_RULE)


def euclidean_dist(op: Op) -> Lowered:
    """``_euclidean_dist(a, b)``, what ``cdist`` is of many rows: one product, of rows lengthened
    by their norms and ones, then its root (ATen's ``Distance.cpp``)."""
    left, distances = tensor(op, 0), op.outputs[0]
    *batch, rows, columns = distances.shape
    found = gemm(op, rows, columns, left.shape[-1] + 2, precision(left), math.prod(batch))
    rooted = Streaming(short_name(op), "elementwise", 4 * moved(op.outputs), 2)
    return Lowered((*found.kernels, rooted), RULE) if found.kernels else FREE


def matrix_exp(op: Op) -> Lowered:
    """``linalg_matrix_exp(a)``: Taylor's polynomial of degree 18 takes five products (ATen's
    ``compute_T18``, after Bader, Blanes and Casas 2019); of small norms, fewer."""
    a = tensor(op, 0)
    *batch, n, _ = a.shape
    once = gemm(op, n, n, n, precision(a), math.prod(batch), "NN")
    return Lowered(once.kernels * 5, RULE)


def triangular(op: Op) -> Lowered:
    """``linalg_solve_triangular(a, b)``: half of a product's operations."""
    a, columns = tensor(op, 0), elements(op.outputs[0])
    *batch, n, _ = a.shape
    if not elements(a):
        return FREE
    columns //= math.prod(batch) * n
    return gemm(op, n, columns, -(-n // 2), precision(a), math.prod(batch), "NN")


def outer(op: Op) -> Lowered:
    """``addr`` and the like: writes a matrix from two vectors."""
    written = sum(elements(spec) * item_bytes(spec) for spec in op.outputs)
    return Lowered((Streaming(short_name(op), "elementwise", written),), RULE)


# Products with quantised weights, by the operations that bitsandbytes declares to torch.

QUANTISED_RULE = "quantised product"


def gemm_4bit(op: Op) -> Lowered:
    """``gemm_4bit(x, weight, weight_shape, absmax, ...)``: the weight is made 16-bit, then
    multiplied. Scales in 8 bits are put together in fp32 first: written, read and written again
    with their offset, read. No timing of the kernel that does it all is published."""
    x = tensor(op, 0)
    n, k = integers(op, 2, 2)
    rows = elements(x) // k if k else 0
    if not (rows and n):
        return FREE
    weight_bytes = n * k * item_bytes(x)
    scales = sum(elements(spec) for spec in on_device(op.inputs[4:]) if spec.dtype == "uint8")
    made = moved(on_device(op.inputs[1:])) + weight_bytes + 16 * scales
    kernels = (
        Streaming(f"{short_name(op)}_dequantise", "cast", made, launches=3 if scales else 1),
        Gemm(short_name(op), rows, n, k, precision(x)),
    )
    return Lowered(kernels, QUANTISED_RULE, estimated=True)


def _product(op: Op, first: int, *more: Gemm | Streaming) -> Lowered:
    """The argument at ``first`` times the one behind it, transposed, both 8-bit, and what else
    runs behind it."""
    x, weight = tensor(op, first), tensor(op, first + 1)
    rows = math.prod(x.shape[:-1])
    if not (rows and elements(weight)):
        return FREE
    kernel = Gemm(short_name(op), rows, weight.shape[0], weight.shape[1], precision(x))
    return Lowered((kernel, *more), QUANTISED_RULE, estimated=True)


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
    **named(mm, "mm bmm _int_mm"),
    **named(addmm, "addmm _addmm_activation baddbmm addbmm"),
    **named(linear, "linear"),
    **named(matmul, "matmul"),
    **named(matrix_vector, "mv addmv dot vdot"),
    **named(outer, "addr"),
    **named(euclidean_dist, "_euclidean_dist"),
    **named(matrix_exp, "linalg_matrix_exp"),
    **named(triangular, "linalg_solve_triangular"),
    **named(scaled_mm, "_scaled_mm _scaled_mm_v2"),
    **named(grouped_mm, "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2"),
    "bitsandbytes.gemm_4bit": gemm_4bit,
    "bitsandbytes.int8_linear_matmul": int8_linear_matmul,
    "bitsandbytes.int8_mixed_scaled_mm": int8_mixed_scaled_mm,
    "bitsandbytes.int8_scaled_mm": int8_scaled_mm,
}
