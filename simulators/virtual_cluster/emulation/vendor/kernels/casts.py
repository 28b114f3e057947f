"""Shapes of what turns tensors into 8 bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels.registry import (
    empty,
    rows_of,
    shapes_of,
    torch_dtype,
)

# Scales of MXFP8 blocks are padded to what tensor cores load at once: 128 rows by 4 blocks.
MX_BLOCK, _MX_ROWS, _MX_COLUMNS = 32, 128, 4
_BLOCK = 128


def _padded(size: int, multiple: int) -> int:
    return math.ceil(size / multiple) * multiple


def _quantized(
    shape: Sequence[int],
    like: Tensor,
    recipe: str,
    dtype: str,
    rowwise: bool,
    columnwise: bool,
    square: bool = False,
) -> list[Tensor]:
    """Data and scales of the uses asked for, as each recipe lays them out."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    eight = torch_dtype(dtype)
    made: list[Tensor] = []
    if recipe == "mxfp8":
        scale = torch.uint8
        if rowwise:
            blocks = (_padded(rows, _MX_ROWS), _padded(math.ceil(columns / MX_BLOCK), _MX_COLUMNS))
            made += [empty(like, shape, eight), empty(like, blocks, scale)]
        if columnwise:
            blocks = (_padded(math.ceil(rows / MX_BLOCK), _MX_COLUMNS), _padded(columns, _MX_ROWS))
            made += [empty(like, shape, eight), empty(like, blocks, scale)]
        return made
    if recipe == "blockwise":
        if rowwise:
            made += [empty(like, shape, eight), _block_scales(like, rows, columns, square)]
        if columnwise:
            data = empty(like, (columns, rows), eight)
            made += [data, _block_scales(like, columns, rows, square)]
        return made
    if rowwise:
        made.append(empty(like, shape, eight))
    if columnwise:
        made.append(empty(like, (columns, rows), eight))
    return made


def _block_scales(like: Tensor, rows: int, columns: int, square: bool) -> Tensor:
    """fp32 scales of 1 x 128 blocks, kept column first, or of 128 x 128 ones (weights); the
    fast dimension is padded to four numbers."""
    across = math.ceil(columns / _BLOCK)
    if square:
        down = math.ceil(rows / _BLOCK)
        return empty(like, (down, _padded(across, 4)), torch.float32)
    return empty(like, (across, _padded(rows, 4)), torch.float32)


@shapes_of
def quantize(
    input: Tensor, recipe: str, dtype: str, rowwise: bool, columnwise: bool
) -> list[Tensor]:
    return _quantized(input.shape, input, recipe, dtype, rowwise, columnwise)


@shapes_of
def quantize_bias_grad(
    input: Tensor, recipe: str, dtype: str, rowwise: bool, columnwise: bool
) -> list[Tensor]:
    made = _quantized(input.shape, input, recipe, dtype, rowwise, columnwise)
    return [empty(input, input.shape[-1:]), *made]


@shapes_of
def quantize_into(input: Tensor, out: Sequence[Tensor], recipe: str) -> None:
    return None


@shapes_of
def quantize_into_bias_grad(input: Tensor, out: Sequence[Tensor], recipe: str) -> Tensor:
    return empty(input, input.shape[-1:])


@shapes_of
def quantize_weight(input: Tensor, dtype: str, columnwise: bool) -> list[Tensor]:
    return _quantized(input.shape, input, "blockwise", dtype, True, columnwise, square=True)


@shapes_of
def grouped_quantize(
    input: Tensor,
    splits: Sequence[int],
    recipe: str,
    dtype: str,
    rowwise: bool,
    columnwise: bool,
) -> list[Tensor]:
    made: list[Tensor] = []
    for rows in splits:
        shape = (rows, input.shape[-1])
        made += _quantized(shape, input, recipe, dtype, rowwise, columnwise)
    return made


@shapes_of
def amax(input: Tensor) -> Tensor:
    return empty(input, (1,), torch.float32)


@shapes_of
def scale_from_amax(amax: Tensor, dtype: str) -> Tensor:
    return empty(amax, (1,), torch.float32)


@shapes_of
def fp8_transpose(input: Tensor) -> Tensor:
    return empty(input, (input.shape[-1], rows_of(input)))


@shapes_of
def swizzle_scales(scales: Tensor) -> Tensor:
    return empty(scales, scales.shape)


@shapes_of
def update_amax_and_scale(
    reduced: Tensor, histories: Sequence[Tensor], scales: Sequence[Tensor]
) -> None:
    return None
