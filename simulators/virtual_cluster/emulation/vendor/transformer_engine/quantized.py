"""Tensors in 8 bits: what each recipe makes of one, by which kernels, and what it keeps.

A tensor is used row by row in one product and column by column in another. Tensor cores before
Blackwell contract the inner dimension only, so that the second use of a tensor with one scale is
of a transposed copy; blocks of scales lie along the contracted dimension, so that block-scaled
tensors are quantised for each use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel

PER_TENSOR = ("delayed", "current")


def takes_any_layout() -> bool:
    """Whether tensor cores contract either dimension of 8-bit operands (Blackwell does)."""
    return bool(torch.cuda.get_device_capability() >= (10, 0))


@dataclass(frozen=True)
class Quantized:
    """8-bit data of a matrix by use, with scales where the recipe has them.

    Per tensor and blockwise, ``columnwise`` is transposed.
    """

    recipe: str
    dtype: str
    shape: tuple[int, ...]
    rowwise: Tensor | None = None
    rowwise_scales: Tensor | None = None
    columnwise: Tensor | None = None
    columnwise_scales: Tensor | None = None

    def tensors(self) -> tuple[Tensor | None, ...]:
        """What autograd keeps."""
        return (self.rowwise, self.rowwise_scales, self.columnwise, self.columnwise_scales)

    def emptied(self) -> Quantized:
        """The same without tensors, to put those that autograd kept back into."""
        return self.filled((None,) * 4)

    def filled(self, tensors: Sequence[Tensor | None]) -> Quantized:
        rowwise, rowwise_scales, columnwise, columnwise_scales = tensors
        return replace(
            self,
            rowwise=rowwise,
            rowwise_scales=rowwise_scales,
            columnwise=columnwise,
            columnwise_scales=columnwise_scales,
        )

    def for_rows(self) -> Quantized:
        """Without what only column use needs."""
        return self.filled((self.rowwise, self.rowwise_scales, None, None))

    def for_columns(self) -> Quantized:
        """Ready for column use, and without what only row use needs."""
        made = self.with_columns()
        if made.columnwise is None:
            return made
        return made.filled((None, None, made.columnwise, made.columnwise_scales))

    def with_columns(self) -> Quantized:
        """Ready for column use: transposes data where that needs a copy.

        With square blocks (weights) the scales are transposed too; MXFP8 data for one use cannot
        be turned into data for the other.
        """
        if self.columnwise is not None or self.recipe == "mxfp8":
            return self
        if self.recipe == "blockwise":
            assert self.rowwise_scales is not None
            scales = self.rowwise_scales.t().contiguous()
            data = kernel("fp8_transpose")(self.rowwise)
            return replace(self, columnwise=data, columnwise_scales=scales)
        if takes_any_layout():
            return self
        return replace(self, columnwise=kernel("fp8_transpose")(self.rowwise))

    @property
    def must_be_made_again(self) -> bool:
        """Whether a kept weight is quantised anew when column use is asked for."""
        if self.columnwise is not None or self.recipe == "blockwise":
            return False
        return self.recipe == "mxfp8" or not takes_any_layout()


@dataclass(frozen=True)
class Quantizer:
    """Makes 8-bit tensors of one role of one layer.

    ``recipe`` and ``dtype`` as the kernels name them. ``weight``: blockwise scales are square.
    ``group``: ranks that hold shares of the same tensor and agree on its largest value.
    """

    recipe: str
    dtype: str
    weight: bool = False

    @property
    def gathers_rows_only(self) -> bool:
        """Transposed data cannot be gathered over rows, so row data is, and transposed after."""
        return self.recipe in PER_TENSOR

    def __call__(
        self,
        tensor: Tensor,
        *,
        rowwise: bool = True,
        columnwise: bool = False,
        group: Any = None,
        amax_known: bool = False,
    ) -> Quantized:
        """Quantise a matrix; ``amax_known``: the kernel before found the largest value."""
        rowwise, columnwise = self._uses(rowwise, columnwise)
        self._scale(tensor, group, amax_known)
        if self.weight and self.recipe == "blockwise":
            made = kernel("quantize_weight")(tensor, self.dtype, columnwise)
        else:
            made = kernel("quantize")(tensor, self.recipe, self.dtype, rowwise, columnwise)
        return self.arrange(tensor.shape, made, rowwise, columnwise)

    def with_bias_grad(
        self, tensor: Tensor, *, rowwise: bool, columnwise: bool
    ) -> tuple[Tensor, Quantized]:
        """Quantise an output gradient and sum it over rows.

        One kernel does both with MXFP8 and with delayed scaling, before Blackwell only if it also
        transposes.
        """
        fused = self.recipe == "mxfp8" or (
            self.recipe == "delayed" and (columnwise or takes_any_layout())
        )
        if not fused:
            return tensor.sum(dim=0), self(tensor, rowwise=rowwise, columnwise=columnwise)
        rowwise, columnwise = self._uses(rowwise, columnwise)
        bias_grad, *made = kernel("quantize_bias_grad")(
            tensor, self.recipe, self.dtype, rowwise, columnwise
        )
        return bias_grad, self.arrange(tensor.shape, made, rowwise, columnwise)

    def update(self, tensor: Tensor, out: Quantized) -> None:
        """Quantise into the tensors of ``out``."""
        self._scale(tensor, None, False)
        kernel("quantize_into")(
            tensor, [each for each in out.tensors() if each is not None], self.recipe
        )

    def arrange(
        self, shape: Sequence[int], made: Sequence[Tensor], rowwise: bool, columnwise: bool
    ) -> Quantized:
        """Name the tensors a quantising kernel made."""
        empty = Quantized(self.recipe, self.dtype, tuple(shape))
        left = list(made)
        each = 1 if self.recipe in PER_TENSOR else 2
        slots: list[Tensor | None] = []
        for used in (rowwise, columnwise):
            taken: list[Tensor | None] = [left.pop(0) for _ in range(each if used else 0)]
            slots += taken + [None] * (2 - len(taken))
        return empty.filled(slots)

    def _uses(self, rowwise: bool, columnwise: bool) -> tuple[bool, bool]:
        if self.recipe in PER_TENSOR:
            # Column use is of a transposed copy, or of the row data itself.
            return (True, columnwise) if not takes_any_layout() else (True, False)
        if self.recipe == "blockwise" and self.weight:
            return True, columnwise
        return rowwise, columnwise

    def _scale(self, tensor: Tensor, group: Any, amax_known: bool) -> None:
        if self.recipe != "current":
            return
        if amax_known:
            amax = torch.empty(1, dtype=torch.float32, device=tensor.device)
        else:
            amax = kernel("amax")(tensor)
        if group is not None and dist.get_world_size(group) > 1:
            dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
        kernel("scale_from_amax")(amax, self.dtype)
