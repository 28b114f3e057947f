"""Tensor-parallel communication cut in pieces beside pieces of the products (user buffers).

A gather runs around a ring: each piece that has come is multiplied while the next one comes. A
scatter runs in a few pieces, each summed over ranks while the next is multiplied. In bulk, one
communication runs beside one product, which is what the layers do without user buffers as well.
The library moves pieces by its own copies over NVLink; here they are sends, receives and
reduce-scatters of the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.products import (
    Operand,
    get_workspace,
    operands,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.quantized import (
    Quantized,
)

# The products that have a buffer, and in how many pieces a scatter runs.
_GATHERS = ("qkv_fprop", "qkv_dgrad", "proj_dgrad", "fc1_fprop", "fc1_dgrad", "fc2_dgrad")
_SCATTERS = ("proj_fprop", "fc2_fprop", "qkv_wgrad", "fc1_wgrad")
_PIECES = 4
# By product, and whether in 8 bits.
_buffers: dict[tuple[str, bool], Tensor] = {}


@dataclass(frozen=True)
class Overlap:
    """Which products of a layer run in pieces beside their communication."""

    name: str = ""
    gather_forward: bool = False
    scatter_forward: bool = False
    gather_gradient: bool = False
    scatter_gradient: bool = False
    bulk: bool = False

    @property
    def is_on(self) -> bool:
        pieces = (
            self.gather_forward,
            self.scatter_forward,
            self.gather_gradient,
            self.scatter_gradient,
        )
        return any(pieces) or self.bulk

    @classmethod
    def of(
        cls, options: dict[str, Any], parallel_mode: str | None, sequence_parallel: bool
    ) -> Overlap:
        """From a module's ``ub_`` options, which only mean something for sharded sequences."""
        on = {name for name, value in options.items() if name.startswith("ub_") and value is True}
        column = sequence_parallel and parallel_mode == "column"
        row = sequence_parallel and parallel_mode == "row"
        made = cls(
            name=options.get("ub_name") or "",
            gather_forward=column and "ub_overlap_ag" in on,
            scatter_forward=row and "ub_overlap_rs" in on,
            gather_gradient=row and "ub_overlap_ag" in on,
            scatter_gradient=column and "ub_overlap_rs_dgrad" in on,
            bulk=column and bool({"ub_bulk_dgrad", "ub_bulk_wgrad"} & on),
        )
        if made.is_on:
            assert _buffers, "initialize_ub() must be called before layer construction."
        return made


class UserBufferQuantizationMode(Enum):
    """What buffers of gathers hold."""

    NONE = "none"
    FP8 = "fp8"


def initialize_ub(
    shape: Sequence[int],
    tp_size: int,
    use_fp8: bool = False,
    quantization_modes: Sequence[UserBufferQuantizationMode] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    ub_cfgs: Any = None,
    bootstrap_backend: Any = None,
) -> None:
    """Allocate buffers of ``shape`` (tokens, width) for each product that has one.

    Raises:
        InputError: for another method than the default for a product.
    """
    for configuration in ub_cfgs if isinstance(ub_cfgs, list) else [ub_cfgs]:
        for name, options in (configuration or {}).items():
            if "method" in (options or {}):
                raise refusal(f"ub_cfgs.{name}.method", "another method", "the default")
    if _buffers:
        raise RuntimeError("UB communicators are already initialized.")
    default = UserBufferQuantizationMode.FP8 if use_fp8 else UserBufferQuantizationMode.NONE
    for mode in quantization_modes or [default]:
        quantized = mode is UserBufferQuantizationMode.FP8
        for name in _GATHERS:
            held = torch.uint8 if quantized else dtype
            _buffers[name, quantized] = torch.empty(tuple(shape), dtype=held, device="cuda")
        for name in _SCATTERS:
            _buffers[name, quantized] = torch.empty(tuple(shape), dtype=dtype, device="cuda")


def destroy_ub() -> None:
    """Free the buffers."""
    _buffers.clear()


def _buffer(
    name: str, use: str, quantized: bool, shape: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    key = f"{name}_{'fprop' if use == 'forward' else use}", quantized
    assert key in _buffers, f"UB manager for {key[0]} is not initialized."
    return _buffers[key].view(-1)[: shape[0] * shape[1]].view(dtype).view(shape)


def multiply_gathered(
    share: Operand, weight: Operand, name: str, use: str, dtype: torch.dtype, group: Any
) -> tuple[Tensor, Operand]:
    """Product of the rows of all ranks, and those rows, which stay in the buffer."""
    get_workspace()
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    ranks = dist.get_process_group_ranks(group)
    data, factor, layout, recipe = operands(share, weight, use)
    rows, inner = data.shape
    whole = _buffer(name, use, bool(recipe), (size * rows, inner), data.dtype)
    width = factor.shape[0] if layout == "TN" else factor.shape[1]
    out = torch.empty((size * rows, width), dtype=dtype, device=data.device)
    whole[rank * rows : (rank + 1) * rows].copy_(data)
    for step in range(size):
        piece = (rank - step) % size
        here = slice(piece * rows, (piece + 1) * rows)
        requests: list[Any] = []
        if step < size - 1:
            next_piece = (piece - 1) % size
            coming = whole[next_piece * rows : (next_piece + 1) * rows]
            requests = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, whole[here], ranks[(rank + 1) % size], group),
                    dist.P2POp(dist.irecv, coming, ranks[(rank - 1) % size], group),
                ]
            )
        kernel("gemm_into")(whole[here], factor, out[here], layout, use, False, recipe)
        for request in requests:
            request.wait()
    if isinstance(share, Quantized):
        gathered = Quantized(share.recipe, share.dtype, tuple(whole.shape), rowwise=whole)
        return out, gathered
    return out, whole


def multiply_scattered(
    rows: Operand, weight: Operand, name: str, use: str, dtype: torch.dtype, group: Any
) -> Tensor:
    """Product of all rows, summed over ranks, of which each keeps its share."""
    get_workspace()
    size = dist.get_world_size(group)
    data, factor, layout, recipe = operands(rows, weight, use)
    width = factor.shape[0] if layout == "TN" else factor.shape[1]
    count = data.shape[0]
    buffer = _buffer(name, use, bool(recipe), (count, width), dtype)
    out = torch.empty((count // size, width), dtype=dtype, device=data.device)
    works = []
    for part, product, share in zip(
        data.chunk(_PIECES), buffer.chunk(_PIECES), out.chunk(_PIECES), strict=True
    ):
        kernel("gemm_into")(part, factor, product, layout, use, False, recipe)
        works.append(dist.reduce_scatter_tensor(share, product, group=group, async_op=True))
    for work in works:
        work.wait()
    return out
