"""Tensor-parallel communication of Transformer Engine's modules, of plain and 8-bit tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import MX_BLOCK, kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.quantized import (
    Quantized,
)


class Pending:
    """Something that was launched, and what to do once it has come."""

    def __init__(self, work: Any, finish: Callable[[], Any]) -> None:
        self._work = work
        self._finish = finish

    def wait(self) -> Any:
        """Order the stream behind the communication; what it brought."""
        if self._work is not None:
            self._work.wait()
        return self._finish()


def _gathered(tensor: Tensor, group: Any) -> Tensor:
    size = dist.get_world_size(group)
    return torch.empty(
        (tensor.shape[0] * size, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device
    )


def start_gather(value: Tensor | Quantized, group: Any, *, asynchronous: bool) -> Pending:
    """Gather rows of all ranks of ``group``; ``wait()`` gives the whole.

    8-bit data travels as it is. Its scales, where there are more than one, go along in the same
    launch; transposed blockwise data is put in order afterwards.
    """
    if dist.get_world_size(group) == 1:
        return Pending(None, lambda: value)
    if isinstance(value, Tensor):
        whole = _gathered(value, group)
        work = dist.all_gather_into_tensor(
            whole, value.contiguous(), group=group, async_op=asynchronous
        )
        return Pending(work, lambda: whole)
    shares = [each for each in value.tensors() if each is not None]
    if len(shares) == 1:
        work, wholes = _gather_one(shares[0], group, asynchronous)
    else:
        work, wholes = _gather_together(_unpadded(value), group, asynchronous)
    return Pending(work, lambda: _assembled(value, wholes, group))


def _gather_one(share: Tensor, group: Any, asynchronous: bool) -> tuple[Any, list[Tensor]]:
    whole = _gathered(share, group)
    work = dist.all_gather_into_tensor(whole, share, group=group, async_op=asynchronous)
    return work, [whole]


def _gather_together(
    shares: list[Tensor], group: Any, asynchronous: bool
) -> tuple[Any, list[Tensor]]:
    wholes = [_gathered(share, group) for share in shares]
    with dist._coalescing_manager(
        group=group, device=shares[0].device, async_ops=asynchronous
    ) as together:
        for whole, share in zip(wholes, shares, strict=True):
            dist.all_gather_into_tensor(whole, share, group=group)
    return (together if asynchronous else None), wholes


def _unpadded(value: Quantized) -> list[Tensor]:
    """Scales first, without the rows that only pad them to what tensor cores load."""
    rows = value.shape[0]
    shares: list[Tensor] = []
    pairs = (
        (value.rowwise, value.rowwise_scales, rows),
        (value.columnwise, value.columnwise_scales, rows // MX_BLOCK),
    )
    for data, scales, scale_rows in pairs:
        if data is None or scales is None:
            continue
        shares += [scales[:scale_rows] if value.recipe == "mxfp8" else scales, data]
    return shares


def _assembled(value: Quantized, wholes: list[Tensor], group: Any) -> Quantized:
    rows = value.shape[0] * dist.get_world_size(group)
    slots: list[Tensor | None] = []
    left = list(wholes)
    for data in (value.rowwise, value.columnwise):
        if data is None:
            slots += [None, None]
        elif value.rowwise_scales is None and value.columnwise_scales is None:
            slots += [left.pop(0), None]
        else:
            scales, whole = left.pop(0), left.pop(0)
            # Shares of what is kept column first lie below each other and belong side by side.
            if value.recipe == "blockwise" and data is value.columnwise:
                whole = kernel("fp8_transpose")(whole.view(rows, -1))
            elif value.recipe == "blockwise":
                scales = kernel("swizzle_scales")(scales)
            slots += [whole, scales]
    return Quantized(value.recipe, value.dtype, (rows, *value.shape[1:])).filled(slots)


def gather(value: Tensor | Quantized, group: Any) -> Tensor | Quantized:
    """Gather rows of all ranks before going on."""
    whole: Tensor | Quantized = start_gather(value, group, asynchronous=False).wait()
    return whole


def start_reduce_scatter(tensor: Tensor, group: Any, *, asynchronous: bool) -> Pending:
    """Sum over ranks, each keeping its rows."""
    size = dist.get_world_size(group)
    if size == 1:
        return Pending(None, lambda: tensor)
    share = torch.empty(
        (tensor.shape[0] // size, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device
    )
    work = dist.reduce_scatter_tensor(
        share, tensor.contiguous(), group=group, async_op=asynchronous
    )
    return Pending(work, lambda: share)


def start_all_reduce(tensor: Tensor, group: Any, *, asynchronous: bool) -> Pending:
    """Sum over ranks, in place."""
    if dist.get_world_size(group) == 1:
        return Pending(None, lambda: tensor)
    work = dist.all_reduce(tensor, group=group, async_op=asynchronous)
    return Pending(work, lambda: tensor)
