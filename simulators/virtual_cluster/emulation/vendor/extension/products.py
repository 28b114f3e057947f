"""Matrix products: single, grouped, and in pieces beside their communication."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import dtype_name, kernel

from .enumerations import TORCH_TYPES, CommOverlapType
from .overlap import Form
from .quantized import SWIZZLED, make, operand, quantize, recipe_of

_USES = {(True, False): "forward", (False, False): "dgrad", (False, True): "wgrad"}


def _operands(A: Any, transa: bool, B: Any, transb: bool) -> tuple[Tensor, Tensor, str, str]:  # noqa: N803
    """The tensors of ``B A`` in row-major terms, the layout of the call, the recipe."""
    left, right = operand(B, not transb), operand(A, transa)
    for each in (right, left):
        if each.recipe in SWIZZLED and each.scales is not None:
            kernel("swizzle_scales")(each.scales)
    layout = "T" if transa or right.transposed else "N"
    layout += "T" if transb and not left.transposed else "N"
    return left.data, right.data, layout, left.recipe or right.recipe


def generic_gemm(
    A: Any,  # noqa: N803 - the library's names
    transa: bool,
    B: Any,  # noqa: N803
    transb: bool,
    D: Tensor | None,  # noqa: N803
    quantizer: Any,
    output_dtype: Any,
    bias: Tensor | None,
    bias_type: Any,
    gelu: bool,
    gelu_in: Tensor | None,
    grad: bool,
    workspace: Tensor,
    workspace_size: int,
    accumulate: bool,
    use_split_accumulator: bool,
    comm_overlap: Any = None,
    comm_type: Any = None,
    extra_output: Tensor | None = None,
    bulk_overlap: bool = False,
    alpha: float = 1.0,
    beta: float | None = None,
) -> tuple[Any, ...]:
    """One product; its bias gradient, the input of a fused GELU and the extra output, if any.

    What runs in the product's epilogue (a bias and its gradient, GELU) costs nothing beside it.
    """
    left, right, layout, recipe = _operands(A, transa, B, transb)
    use = _USES.get((transa, transb), "other")
    dtype = _output_type(A, D, output_dtype)
    work = None
    if comm_overlap is not None and bulk_overlap:
        work = comm_overlap.start_bulk(comm_type, extra_output)
    elif comm_overlap is not None:
        overlapped = (
            comm_overlap.multiply_gathered
            if comm_type == CommOverlapType.AG
            else comm_overlap.multiply_scattered
        )
        out = overlapped(left, right, Form(layout, use, recipe, dtype), D, extra_output)
        return out, None, None, extra_output
    bias_grad = None
    if D is not None:
        operands = (left, right, D, layout, use, accumulate)
        if bias is not None and grad:
            bias_grad = kernel("gemm_into_bias_grad")(*operands, dtype_name(dtype), recipe)
        else:
            kernel("gemm_into")(*operands, recipe)
        out = D
    elif bias is not None and grad:
        out, bias_grad = kernel("gemm_bias_grad")(
            left, right, layout, use, dtype_name(dtype), recipe
        )
    else:
        out = kernel("gemm")(left, right, layout, use, dtype_name(dtype), bias, recipe)
    if work is not None:
        work.wait()
    before_gelu = torch.empty_like(out) if gelu and not grad else None
    if recipe_of(quantizer):
        out = quantize(out, quantizer)
    return out, bias_grad, before_gelu, extra_output


def _output_type(A: Any, D: Tensor | None, output_dtype: Any) -> torch.dtype:  # noqa: N803
    if output_dtype is not None:
        return TORCH_TYPES[output_dtype]
    return A.dtype if D is None else D.dtype


def _one_kernel() -> bool:
    """CUTLASS's grouped kernel, which Hopper uses when asked to, instead of many products."""
    requested = os.environ.get("NVTE_USE_CUTLASS_GROUPED_GEMM", "0") == "1"
    return bool(requested and torch.cuda.get_device_capability()[0] == 9)


def te_general_grouped_gemm(
    A: Sequence[Any],  # noqa: N803
    transa: bool,
    B: Sequence[Any],  # noqa: N803
    transb: bool,
    D: Sequence[Tensor] | None,  # noqa: N803
    D_type: Any,  # noqa: N803
    m_splits: Sequence[int],
    bias: Sequence[Tensor],
    bias_type: Any,
    single_output: bool,
    pre_gelu_out: Sequence[Tensor],
    grad: bool,
    workspace: Any,
    workspace_size: int,
    accumulate: bool,
    *rest: Any,
) -> Sequence[Tensor]:
    """One product for each group; the bias gradients, if wanted."""
    found = [_operands(a, transa, b, transb) for a, b in zip(A, B, strict=True)]
    lefts, rights = [each[0] for each in found], [each[1] for each in found]
    layout, recipe = found[0][2:]
    if D is None:
        dtype = TORCH_TYPES[D_type]
        shapes = [
            (left.shape[-2 if layout == "TN" else -1], right.shape[-1 if layout != "TN" else -2])
            for left, right in zip(lefts, rights, strict=True)
        ]
        D = [make(None, shape, dtype) for shape in shapes]  # noqa: N806
    splits = list(m_splits) or [left.shape[0] for left in lefts]
    use = _USES.get((transa, transb), "other")
    kernel("grouped_gemm_into")(
        lefts, rights, list(D), splits, layout, use, accumulate, _one_kernel(), recipe
    )
    return bias
