"""Tensor-parallel communication of Transformer Engine's modules, of plain and 8-bit tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.products import (
    Operand,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.quantized import (
    MX_BLOCK,
    QuantizedStorage,
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


def start_gather(value: Operand, group: Any, *, asynchronous: bool) -> Pending:
    """Gather rows of all ranks of ``group``; ``wait()`` gives the whole.

    8-bit data travels as it is. Its scales, where there are more than one, go along in the same
    launch; transposed blockwise data is put in order afterwards.
    """
    size = dist.get_world_size(group)
    if size == 1:
        return Pending(None, lambda: value)
    shares = [value.contiguous()] if isinstance(value, Tensor) else _unpadded(value)
    wholes = [
        torch.empty((each.shape[0] * size, *each.shape[1:]), dtype=each.dtype, device=each.device)
        for each in shares
    ]
    if len(shares) == 1:
        work = dist.all_gather_into_tensor(
            wholes[0], shares[0], group=group, async_op=asynchronous
        )
    else:
        with dist._coalescing_manager(
            group=group, device=shares[0].device, async_ops=asynchronous
        ) as together:
            for whole, share in zip(wholes, shares, strict=True):
                dist.all_gather_into_tensor(whole, share, group=group)
        work = together if asynchronous else None
    if isinstance(value, Tensor):
        return Pending(work, lambda: wholes[0])
    return Pending(work, lambda: _assembled(value, wholes, size))


def _unpadded(value: QuantizedStorage) -> list[Tensor]:
    """Scales first, without the rows that only pad them to what tensor cores load."""
    rows = value.shape[0]
    data, scales, turned, turned_scales = value.tensors()
    shares: list[Tensor] = []
    for each, blocks, count in ((data, scales, rows), (turned, turned_scales, rows // MX_BLOCK)):
        if blocks is not None:
            shares.append(blocks[:count] if value.quantizer.recipe == "mxfp8" else blocks)
        if each is not None:
            shares.append(each)
    return shares


def _assembled(value: QuantizedStorage, wholes: list[Tensor], size: int) -> QuantizedStorage:
    rows = value.shape[0] * size
    slots: list[Tensor | None] = []
    left = list(wholes)
    for at, data in enumerate(value.tensors()[::2]):
        if data is None:
            slots += [None, None]
            continue
        scales = None if value.tensors()[2 * at + 1] is None else left.pop(0)
        whole = left.pop(0)
        # Shares of what is kept column first lie below each other and belong side by side.
        if value.quantizer.recipe == "blockwise" and at:
            whole = kernel("fp8_transpose")(whole.view(rows, -1))
        elif value.quantizer.recipe == "blockwise":
            scales = kernel("swizzle_scales")(scales)
        slots += [whole, scales]
    return QuantizedStorage(value.quantizer, (rows, *value.shape[1:])).filled(slots)


def gather(value: Operand, group: Any) -> Any:
    """Gather rows of all ranks before going on."""
    return start_gather(value, group, asynchronous=False).wait()


def start_reduce(tensor: Tensor, group: Any, scatter: bool, *, asynchronous: bool) -> Pending:
    """Sum over ranks, in place or each keeping its rows."""
    size = dist.get_world_size(group)
    if size == 1:
        return Pending(None, lambda: tensor)
    if not scatter:
        return Pending(dist.all_reduce(tensor, group=group, async_op=asynchronous), lambda: tensor)
    share = torch.empty(
        (tensor.shape[0] // size, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device
    )
    given = share, tensor.contiguous()
    work = dist.reduce_scatter_tensor(*given, group=group, async_op=asynchronous)
    return Pending(work, lambda: share)
