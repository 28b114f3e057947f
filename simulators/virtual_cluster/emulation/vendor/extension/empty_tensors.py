"""Tensors in few bits whose layout the compiled part decides, as it does from 2.16 on."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_TENSORS = "transformer_engine.pytorch.tensor."
_CLASSES = (
    ("Float8BlockQuantizer", "float8_blockwise_tensor", "Float8BlockwiseQTensor"),
    ("Float8CurrentScalingQuantizer", "float8_tensor", "Float8Tensor"),
    ("Float8Quantizer", "float8_tensor", "Float8Tensor"),
    ("MXFP8Quantizer", "mxfp8_tensor", "MXFP8Tensor"),
    ("NVFP4Quantizer", "nvfp4_tensor", "NVFP4Tensor"),
)


def create_empty_quantized_tensor(
    quantizer: Any, shape: Sequence[int], dtype: torch.dtype, device: Any, pin_memory: bool = False
) -> Any:
    """What a quantizer makes of a tensor of this shape, with the uses that it has now."""
    names = {kind.__name__ for kind in type(quantizer).__mro__}
    name, module, tensor = next(each for each in _CLASSES if each[0] in names)
    kind = getattr(importlib.import_module(_TENSORS + module), tensor)

    def empty(size: Sequence[int], element: torch.dtype = torch.uint8) -> Tensor:
        return torch.empty(tuple(size), dtype=element, device=device)

    given: dict[str, Any] = {"shape": tuple(shape), "dtype": dtype, "quantizer": quantizer}
    four = name == "NVFP4Quantizer"
    given["fp4_dtype" if four else "fp8_dtype"] = quantizer.dtype
    if tensor == "Float8Tensor":
        return kind(
            **given,
            data=empty(shape) if quantizer.rowwise_usage else None,
            data_transpose=empty((shape[-1], *shape[:-1])) if quantizer.columnwise_usage else None,
            fp8_scale_inv=empty((1,), torch.float32),
        )
    if name == "Float8BlockQuantizer":
        given["is_2D_scaled"] = quantizer.block_scaling_dim == 2
        scale = torch.float32
    else:
        given["with_gemm_swizzled_scales"] = bool(quantizer.optimize_for_gemm)
        scale = torch.uint8
    sides = (("rowwise", quantizer.rowwise_usage), ("columnwise", quantizer.columnwise_usage))
    for side, used in sides:
        column = side == "columnwise"
        *outer, last = quantizer.get_columnwise_shape(tuple(shape)) if column else shape
        scales = quantizer.get_scale_shape(tuple(shape), column)
        given[f"{side}_data"] = empty((*outer, last // 2 if four else last)) if used else None
        given[f"{side}_scale_inv"] = empty(scales, scale) if used else None
        if four:
            given[f"amax_{side}"] = empty((1,), torch.float32) if used else None
    return kind(**given)
