"""Tensors in 8 bits, as the emulated compiled part asks for them (``extension.quantized``).

A tensor is used row by row in one product and column by column in another. Tensor cores before
Blackwell contract the inner dimension only, so that the second use of a tensor with one scale is
of a transposed copy; blocks of scales lie along the contracted dimension, so that block-scaled
tensors are quantised for each use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.extension.enumerations import (
    TORCH_TYPES,
    DType,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.extension.quantized import (
    PER_TENSOR,
    takes_any_layout,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel

# Scales of MXFP8 blocks are padded to what tensor cores load at once: 128 rows by 4 blocks.
MX_BLOCK, _MX_ROWS, _MX_COLUMNS = 32, 128, 4
_BLOCK = 128
_SLOTS = ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv")


@dataclass(frozen=True)
class Quantizer:
    """How a tensor of one role becomes 8-bit, and for which uses.

    ``group``: ranks that hold shares of the same tensor and agree on its largest value.
    ``square``: blocks of 128 x 128 (weights) instead of 1 x 128.
    """

    recipe: str
    dtype: Any = DType.kFloat8E4M3
    rowwise_usage: bool = True
    columnwise_usage: bool = False
    group: Any = None
    square: bool = False
    internal = True

    @property
    def with_amax_reduction(self) -> bool:
        return self.group is not None

    def _canonicalized_amax_reduction_group(self) -> Any:
        return self.group

    def make_empty(self, shape: Sequence[int], **options: Any) -> QuantizedStorage:
        """Data and scales of both uses, as the recipe lays them out."""
        rows, columns = math.prod(shape[:-1]), shape[-1]
        eight = TORCH_TYPES[self.dtype]
        device = options.get("device", "cuda")
        slots: list[Tensor | None] = []
        for down, across, turned in ((rows, columns, False), (columns, rows, True)):
            size = (down, across) if turned and self.recipe != "mxfp8" else tuple(shape)
            slots.append(torch.empty(size, dtype=eight, device=device))
            scales = self._scales(down, across, turned)
            kind = torch.uint8 if self.recipe == "mxfp8" else torch.float32
            slots.append(scales and torch.empty(scales, dtype=kind, device=device))
        return QuantizedStorage(self, tuple(shape)).filled(slots)

    def _scales(self, rows: int, columns: int, turned: bool) -> Any:
        """The shape of the scales of blocks along ``columns``; None with one for all."""
        if self.recipe == "mxfp8":
            blocks = _padded(math.ceil(columns / MX_BLOCK), _MX_COLUMNS)
            shape = (_padded(rows, _MX_ROWS), blocks)
            return shape[::-1] if turned else shape
        if self.recipe != "blockwise":
            return None
        across = math.ceil(columns / _BLOCK)
        if self.square:
            return math.ceil(rows / _BLOCK), _padded(across, 4)
        return across, _padded(rows, 4)

    def create_tensor_from_data(self, data: Tensor, **options: Any) -> QuantizedStorage:
        """Bytes that already are what this makes."""
        eight = data.view(TORCH_TYPES[self.dtype])
        return QuantizedStorage(self, tuple(data.shape)).filled([eight, None, None, None])


def _padded(size: int, multiple: int) -> int:
    return math.ceil(size / multiple) * multiple


class QuantizedStorage:
    """8-bit data of a matrix by use, with scales where the recipe has them.

    Data for column use is transposed, but with MXFP8.
    """

    _rowwise_data: Tensor | None
    _rowwise_scale_inv: Tensor | None
    _columnwise_data: Tensor | None
    _columnwise_scale_inv: Tensor | None

    def __init__(self, quantizer: Quantizer, shape: tuple[int, ...], **parts: Any) -> None:
        self.quantizer, self.shape = quantizer, shape
        for name in _SLOTS:
            setattr(self, f"_{name}", parts.get(name))

    def size(self) -> tuple[int, ...]:
        return self.shape

    def get_metadata(self) -> dict[str, Any]:
        """What another one with the same tensors is made of."""
        slots = _SLOTS[::2] if self.quantizer.recipe in PER_TENSOR else _SLOTS
        parts = {name: getattr(self, f"_{name}") for name in slots}
        return {"quantizer": self.quantizer, "shape": self.shape, **parts}

    def tensors(self) -> list[Tensor | None]:
        """What autograd keeps."""
        return [getattr(self, f"_{name}") for name in _SLOTS]

    def filled(self, tensors: Sequence[Tensor | None]) -> QuantizedStorage:
        """Another one with these tensors."""
        parts = dict(zip(_SLOTS, tensors, strict=True))
        return QuantizedStorage(self.quantizer, self.shape, **parts)

    def for_rows(self) -> QuantizedStorage:
        """Without what only column use needs."""
        return self.filled([*self.tensors()[:2], None, None])

    def for_columns(self) -> QuantizedStorage:
        """Ready for column use, and without what only row use needs."""
        made = self.with_columns()
        if made._columnwise_data is None:
            return made
        return made.filled([None, None, *made.tensors()[2:]])

    def with_columns(self) -> QuantizedStorage:
        """Ready for column use: transposes data where that needs a copy.

        With square blocks (weights) the scales are transposed too; MXFP8 data for one use cannot
        be turned into data for the other.
        """
        recipe = self.quantizer.recipe
        if self._columnwise_data is not None or recipe == "mxfp8":
            return self
        if recipe in PER_TENSOR and takes_any_layout():
            return self
        scales = self._rowwise_scale_inv
        turned = None if scales is None else scales.t().contiguous()
        data = kernel("fp8_transpose")(self._rowwise_data)
        return self.filled([*self.tensors()[:2], data, turned])

    @property
    def must_be_made_again(self) -> bool:
        """Whether a kept weight is quantised anew when column use is asked for."""
        recipe = self.quantizer.recipe
        if self._columnwise_data is not None or recipe == "blockwise":
            return False
        return recipe == "mxfp8" or not takes_any_layout()


class QuantizedTensor(torch.Tensor):
    """Parameters in 8 bits have this type; there are none."""


class Float8Tensor(QuantizedTensor):
    """Scaled per tensor."""


class MXFP8Tensor(QuantizedTensor):
    """Scaled by blocks of 32."""


class Float8BlockwiseQTensor(QuantizedTensor):
    """Scaled by blocks of 128."""
