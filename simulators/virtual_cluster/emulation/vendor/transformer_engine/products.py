"""Matrix products of plain and 8-bit operands, forward and in both gradients."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import dtype_name, kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.quantized import (
    PER_TENSOR,
    Quantized,
    takes_any_layout,
)

Operand: TypeAlias = Tensor | Quantized
_LAYOUTS = {"forward": "TN", "dgrad": "NN", "wgrad": "NT"}
_MIB = 2**20
_workspaces: dict[tuple[int, int], Tensor] = {}


def workspace_bytes() -> int:
    """Scratch memory cuBLAS is given: 32 MiB from Hopper on and room for alignment, else 4."""
    return 32 * _MIB + 1024 if torch.cuda.get_device_capability() >= (9, 0) else 4 * _MIB


def get_workspace(streams: int = 1) -> Tensor:
    """Scratch memory of this device's products, allocated once for each stream they use."""
    device = torch.cuda.current_device()
    for stream in range(streams):
        if (device, stream) not in _workspaces:
            _workspaces[device, stream] = torch.empty(
                workspace_bytes(), dtype=torch.uint8, device="cuda"
            )
    return _workspaces[device, 0]


def operands(left: Operand, right: Operand, use: str) -> tuple[Tensor, Tensor, str, str]:
    """The tensors to multiply, the layout of the call, and the recipe of 8-bit ones.

    ``left`` and ``right`` are input and weight (forward), output gradient and weight (dgrad),
    output gradient and input (wgrad). MXFP8 scales are first put in order for tensor cores.
    """
    layout = _LAYOUTS[use]
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left, right, layout, ""
    assert isinstance(left, Quantized)
    assert isinstance(right, Quantized)
    recipe = left.recipe
    if recipe in PER_TENSOR and takes_any_layout():
        first, second = left.rowwise, right.rowwise
    else:
        columns = use == "wgrad"
        first = left.columnwise if columns else left.rowwise
        second = right.rowwise if use == "forward" else right.columnwise
        if recipe == "mxfp8":
            kernel("swizzle_scales")(left.columnwise_scales if columns else left.rowwise_scales)
            kernel("swizzle_scales")(
                right.rowwise_scales if use == "forward" else right.columnwise_scales
            )
        else:
            layout = "TN"
    assert first is not None
    assert second is not None
    return first, second, layout, recipe


def product(
    left: Operand, right: Operand, use: str, dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:
    """``left x right`` as ``use`` has it, in ``dtype``, with a bias added in the epilogue."""
    get_workspace()
    first, second, layout, recipe = operands(left, right, use)
    out: Tensor = kernel("gemm")(first, second, layout, use, dtype_name(dtype), bias, recipe)
    return out


def weight_gradient(
    grad_output: Operand,
    inputs: Operand,
    dtype: torch.dtype,
    out: Tensor | None,
    accumulate: bool,
    with_bias_grad: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """``grad_output^T inputs``, into ``out`` if given; the sum of ``grad_output`` if asked."""
    get_workspace()
    first, second, layout, recipe = operands(grad_output, inputs, "wgrad")
    name = dtype_name(dtype)
    if out is None:
        if with_bias_grad:
            made = kernel("gemm_bias_grad")(first, second, layout, "wgrad", name, recipe)
            return made[0], made[1]
        return kernel("gemm")(first, second, layout, "wgrad", name, None, recipe), None
    if with_bias_grad:
        bias_grad: Tensor = kernel("gemm_into_bias_grad")(
            first, second, out, layout, "wgrad", accumulate, name, recipe
        )
        return None, bias_grad
    kernel("gemm_into")(first, second, out, layout, "wgrad", accumulate, recipe)
    return None, None


def general_gemm(
    A: Tensor,  # noqa: N803 - the library's names
    B: Tensor,  # noqa: N803
    workspace: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    quantization_params: Any = None,
    gelu: bool | None = None,
    gelu_in: Tensor | None = None,
    accumulate: bool = False,
    layout: str = "TN",
    out: Tensor | None = None,
    bias: Tensor | None = None,
    use_split_accumulator: bool = False,
    grad: bool = False,
    **communication: Any,
) -> tuple[Any, ...]:
    """The library's entry for single products: ``B`` comes first in row-major terms.

    Returns the product, the bias gradient, and two things only fused epilogues make.
    """
    dtype = out_dtype or (B.dtype if out is None else out.dtype)
    if out is not None:
        kernel("gemm_into")(B, A, out, layout, "other", accumulate, "")
        return out, None, None, None
    made = kernel("gemm")(B, A, layout, "other", dtype_name(dtype), bias, "")
    return made, None, None, None
