"""Tensors in few bits: made by the quantizers and classes of the library's own Python.

A quantizer's ``make_empty`` says what it keeps, with which shapes; asked on the meta device it
costs no memory. What of it is allocated follows the compiled part: the uses that are wanted, and
of tensors with one scale no transposed copy where tensor cores take any layout.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import dtype_name, kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.opaque import launch

from .enumerations import TORCH_TYPES, DType

_RECIPES = {
    "Float8Quantizer": "delayed",
    "Float8CurrentScalingQuantizer": "current",
    "MXFP8Quantizer": "mxfp8",
    "Float8BlockQuantizer": "blockwise",
    "NVFP4Quantizer": "nvfp4",
}
# The kernels in front write these themselves, rather than leave it to a cast behind them.
FUSED = ("delayed", "mxfp8")
# Their scales are put in order before each product; their column-wise data is transposed.
SWIZZLED = ("mxfp8", "nvfp4")
PER_TENSOR = ("delayed", "current")
TRANSPOSED = ("blockwise", "nvfp4", *PER_TENSOR)


class Operand(NamedTuple):
    """One use of a tensor: its data, its blocks' scales, whether the data is transposed."""

    data: Tensor
    scales: Tensor | None = None
    transposed: bool = False
    recipe: str = ""


def takes_any_layout() -> bool:
    """Whether 8-bit products need no transposed copies."""
    return bool(torch.cuda.get_device_capability() >= (10, 0))


def recipe_of(quantizer: Any) -> str:
    """How it scales; empty without one."""
    names = [kind.__name__ for kind in type(quantizer).__mro__]
    return next((_RECIPES[name] for name in names if name in _RECIPES), "")


def operand(tensor: Any, rowwise: bool) -> Operand:
    """The data for products over the last dimension (``rowwise``) or over the others."""
    if not hasattr(tensor, "get_metadata"):
        return Operand(tensor)
    parts = tensor.get_metadata()
    recipe = recipe_of(parts.get("quantizer"))
    if "data_transpose" in parts:
        if rowwise or takes_any_layout():
            return Operand(parts["data"], recipe=recipe or "delayed")
        data = tensor._transpose
        return Operand(data.view(data.shape[0], -1), None, True, recipe or "delayed")
    one_scale = recipe in PER_TENSOR
    side = "rowwise" if rowwise or (one_scale and takes_any_layout()) else "columnwise"
    data, scales = parts[f"{side}_data"], parts.get(f"{side}_scale_inv")
    if recipe == "nvfp4":
        data = data.view(torch.float4_e2m1fn_x2)
    if parts.get("with_gemm_swizzled_scales"):
        scales = None
    return Operand(data, scales, side == "columnwise" and recipe in TRANSPOSED, recipe)


def plain(tensor: Any) -> Tensor:
    """The tensor itself, or the 8-bit data inside."""
    return operand(tensor, True).data


def _uses(quantizer: Any) -> tuple[bool, bool]:
    """Whether row-wise and column-wise data is kept."""
    if recipe_of(quantizer) in PER_TENSOR and takes_any_layout():
        return True, False
    return bool(quantizer.rowwise_usage), bool(quantizer.columnwise_usage)


def _parts(
    quantizer: Any, shape: Sequence[int], dtype: torch.dtype
) -> tuple[type, dict[str, Any]]:
    """The class of what it makes and the constructor's arguments, tensors still to allocate."""
    form = quantizer.make_empty(tuple(shape), dtype=dtype, device=torch.device("meta"))
    kind = type(form)
    if quantizer.internal:
        kind = next(base for base in kind.__mro__ if base.__name__.endswith(("Storage", "Base")))
    wanted = dict(zip(("rowwise", "columnwise"), _uses(quantizer), strict=True))
    parts = dict(form.get_metadata())
    for name, value in parts.items():
        if isinstance(value, Tensor):
            column = "columnwise" in name or "transpose" in name
            per_use = "wise" in name or "data" in name
            needed = not per_use or wanted["columnwise" if column else "rowwise"]
            parts[name] = _like(value) if needed else None
    return kind, parts


def _like(form: Tensor) -> Tensor:
    return torch.empty(form.shape, dtype=form.dtype, device="cuda")


def make(quantizer: Any, shape: Sequence[int], dtype: torch.dtype) -> Any:
    """An empty tensor in few bits; in ``dtype`` where there is no quantizer."""
    if not recipe_of(quantizer):
        return torch.empty(tuple(shape), dtype=dtype, device="cuda")
    kind, parts = _parts(quantizer, shape, dtype)
    if quantizer.internal:
        return kind(**parts)
    return kind(**{**parts, "shape": tuple(shape), "dtype": dtype})


def _prepare(out: Any, quantizer: Any) -> None:
    """Give an existing tensor the uses wanted now."""
    if not hasattr(out, "get_metadata"):
        return
    made: dict[str, Any] | None = None
    for name, wanted in zip(("rowwise", "columnwise"), _uses(quantizer), strict=True):
        for attribute, part in _names_of(out, name):
            held = getattr(out, attribute)
            if wanted and held is None:
                if made is None:
                    made = _parts(quantizer, out.size(), torch.float32)[1]
                setattr(out, attribute, made[part])
            elif not wanted and held is not None:
                setattr(out, attribute, None)
    if hasattr(out, "_transpose_invalid"):
        out._transpose_invalid = out._transpose is None


def _names_of(out: Any, side: str) -> list[tuple[str, str]]:
    """Attributes that hold the data for one use, and the constructor's names for them."""
    if hasattr(out, "_transpose"):
        return [("_data", "data")] if side == "rowwise" else [("_transpose", "data_transpose")]
    names = [name for name in out.get_metadata() if name.endswith(side) or name.startswith(side)]
    return [(f"_{name}", name) for name in names if hasattr(out, f"_{name}")]


def written(out: Any) -> list[Tensor]:
    """What a kernel that makes ``out`` writes."""
    if not hasattr(out, "get_metadata"):
        return [out]
    parts = out.get_metadata().items()
    return [
        part
        for name, part in parts
        if isinstance(part, Tensor) and ("wise" in name or "data" in name)
    ]


def quantize(
    tensor: Tensor,
    quantizer: Any,
    output: Any = None,
    noop: Tensor | None = None,
    *,
    has_amax: bool = False,
) -> Any:
    """``tensor`` in few bits; ``has_amax``: its largest value was found by the kernel before."""
    tensor = tensor.contiguous()
    if output is None:
        output = make(quantizer, tensor.shape, tensor.dtype)
    else:
        _prepare(output, quantizer)
    if tensor.numel():
        find_scale(tensor, quantizer, has_amax or getattr(quantizer, "use_existing_amax", False))
        kernel("quantize_into")(tensor, written(output), recipe_of(quantizer))
    return output


def find_scale(tensor: Tensor, quantizer: Any, has_amax: bool) -> None:
    """The kernels in front of the cast where the scale comes from the tensor itself."""
    recipe = recipe_of(quantizer)
    if recipe not in ("current", "nvfp4"):
        return
    largest = None if has_amax else kernel("amax")(tensor)
    if largest is None:
        largest = getattr(quantizer, "amax", None)
    if largest is None:
        largest = torch.empty(1, dtype=torch.float32, device="cuda")
    if getattr(quantizer, "with_amax_reduction", False):
        group = quantizer._canonicalized_amax_reduction_group()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    if recipe == "current":
        kernel("scale_from_amax")(largest, dtype_name(TORCH_TYPES[quantizer.dtype]))


def bgrad_quantize(tensor: Tensor, quantizer: Any) -> tuple[Tensor, Any]:
    """The sum over rows, and the tensor in few bits: one kernel where the recipe has one."""
    rows = tensor.view(-1, tensor.shape[-1])
    if recipe_of(quantizer) in FUSED:
        out = make(quantizer, tensor.shape, tensor.dtype)
        return kernel("quantize_into_bias_grad")(tensor, written(out), recipe_of(quantizer)), out
    bias_grad = rows.sum(dim=0)
    return bias_grad, quantize(tensor, quantizer) if recipe_of(quantizer) else tensor


def dequantize(tensor: Any, otype: DType) -> Tensor:
    """The tensor in 16 or 32 bits again."""
    out = torch.empty(tuple(tensor.size()), dtype=TORCH_TYPES[otype], device="cuda")
    launch("dequantize", [out], written(tensor))
    return out


def multi_tensor_quantize(
    tensor_list: Sequence[Tensor], quantizer_list: Sequence[Any]
) -> list[Any]:
    """Each in few bits: one kernel for all with delayed scaling, else one after another."""
    if not all(recipe_of(each) == "delayed" for each in quantizer_list):
        return [quantize(*pair) for pair in zip(tensor_list, quantizer_list, strict=True)]
    made = [
        make(quantizer, tensor.shape, tensor.dtype)
        for tensor, quantizer in zip(tensor_list, quantizer_list, strict=True)
    ]
    parts = [part for out in made for part in written(out)]
    launch("multi_tensor_quantize", parts, [each for each in tensor_list if each.numel()])
    return made


def fused_multi_quantize(
    input_list: Sequence[Tensor], output_list: Any, quantizer_list: Sequence[Any], otype: Any
) -> list[Any]:
    """What ``multi_tensor_quantize`` was called before 2.5."""
    return multi_tensor_quantize(input_list, quantizer_list)


def split_quantize(
    tensor: Tensor, split_sections: Sequence[int], quantizer_list: Sequence[Any], **options: Any
) -> list[Any]:
    """The rows of each group in few bits: one kernel for all with delayed scaling."""
    groups = tensor.split(list(split_sections))
    if not all(recipe_of(each) == "delayed" for each in quantizer_list):
        return [quantize(*pair) for pair in zip(groups, quantizer_list, strict=True)]
    pairs = zip(groups, quantizer_list, strict=True)
    made = [make(quantizer, rows.shape, tensor.dtype) for rows, quantizer in pairs]
    kernel("quantize_into")(tensor, [part for out in made for part in written(out)], "delayed")
    return made


def then_quantized(
    quantizer: Any, shape: Sequence[int], read: Sequence[Tensor], compute: Callable[[], Tensor]
) -> Any:
    """What ``compute`` makes, in few bits if there is a quantizer.

    One kernel reads ``read`` and writes few bits where the recipe has one; else the result is
    made first. With current scaling that kernel finds the largest value on the way.
    """
    recipe = recipe_of(quantizer)
    if not recipe:
        return compute()
    if recipe in FUSED:
        out = make(quantizer, shape, read[-1].dtype)
        launch("activation_and_cast", written(out), read)
        return out
    return quantize(compute(), quantizer, has_amax=recipe == "current")


def fp8_transpose(input: Tensor, dtype: Any, *, out: Tensor | None = None) -> Tensor:
    """8-bit data with the last dimension first."""
    if out is not None:
        kernel("quantize_into")(input, [out], "")
        return out
    made: Tensor = kernel("fp8_transpose")(input)
    return made.view(input.shape[-1], *input.shape[:-1])


def swap_first_dims(tensor: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The first two dimensions exchanged, in memory."""
    swapped = tensor.transpose(0, 1)
    return swapped.contiguous() if out is None else out.copy_(swapped)


def compute_amax(tensor: Tensor, amax: Tensor) -> None:
    """The largest absolute value, into ``amax``."""
    launch("amax", [amax], [tensor])


def update_scales(
    amax_reduction_buffer: Tensor,
    amax_histories: Sequence[Tensor],
    scales: Sequence[Tensor],
    *rest: Any,
) -> None:
    """Delayed scaling, at the end of a pass."""
    kernel("update_amax_and_scale")(amax_reduction_buffer, list(amax_histories), list(scales))


# Tensors in few bits whose layout the compiled part decides, as it does from 2.16 on.

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

    kwargs: dict[str, Any] = {"shape": tuple(shape), "dtype": dtype, "quantizer": quantizer}
    four = name == "NVFP4Quantizer"
    kwargs["fp4_dtype" if four else "fp8_dtype"] = quantizer.dtype
    if tensor == "Float8Tensor":
        return kind(
            **kwargs,
            data=empty(shape) if quantizer.rowwise_usage else None,
            data_transpose=empty((shape[-1], *shape[:-1])) if quantizer.columnwise_usage else None,
            fp8_scale_inv=empty((1,), torch.float32),
        )
    if name == "Float8BlockQuantizer":
        kwargs["is_2D_scaled"] = quantizer.block_scaling_dim == 2
        scale = torch.float32
    else:
        kwargs["with_gemm_swizzled_scales"] = bool(quantizer.optimize_for_gemm)
        scale = torch.uint8
    sides = (("rowwise", quantizer.rowwise_usage), ("columnwise", quantizer.columnwise_usage))
    for side, used in sides:
        column = side == "columnwise"
        *outer, last = quantizer.get_columnwise_shape(tuple(shape)) if column else shape
        scales = quantizer.get_scale_shape(tuple(shape), column)
        kwargs[f"{side}_data"] = empty((*outer, last // 2 if four else last)) if used else None
        kwargs[f"{side}_scale_inv"] = empty(scales, scale) if used else None
        if four:
            kwargs[f"amax_{side}"] = empty((1,), torch.float32) if used else None
    return kind(**kwargs)
