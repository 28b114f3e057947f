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
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from simulators.emulation.vendor.kernels import kernel
from simulators.emulation.vendor.refuse import refusal
from simulators.emulation.vendor.transformer_engine.products import get_workspace, operands

# The products that have a buffer, and in how many pieces a scatter runs.
_GATHERS = ("qkv_fprop", "qkv_dgrad", "proj_dgrad", "fc1_fprop", "fc1_dgrad", "fc2_dgrad")
_SCATTERS = ("proj_fprop", "fc2_fprop", "qkv_wgrad", "fc1_wgrad")
_PIECES = 4
_buffers: dict[str, Tensor] = {}


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


def initialize_ub(
    shape: Sequence[int],
    tp_size: int,
    use_fp8: bool = False,
    quantization_modes: Any = None,
    dtype: torch.dtype = torch.bfloat16,
    ub_cfgs: Any = None,
    bootstrap_backend: Any = None,
) -> None:
    """Allocate a buffer of ``shape`` (tokens, width) for each product that has one.

    Raises:
        InputError: for 8 bits, or another method than the default for a product.
    """
    if use_fp8 or any(getattr(mode, "value", mode) != "none" for mode in quantization_modes or ()):
        raise refusal("initialize_ub.use_fp8", "user buffers in 8 bits", "False")
    for name, options in (ub_cfgs or {}).items():
        if "method" in (options or {}):
            raise refusal(f"ub_cfgs.{name}.method", "another method", "the default")
    if _buffers:
        raise RuntimeError("UB communicators are already initialized.")
    for name in (*_GATHERS, *_SCATTERS):
        _buffers[name] = torch.empty(tuple(shape), dtype=dtype, device="cuda")


def destroy_ub() -> None:
    """Free the buffers."""
    _buffers.clear()


def multiply_gathered(
    share: Tensor, weight: Tensor, name: str, use: str, dtype: torch.dtype, group: Any
) -> tuple[Tensor, Tensor]:
    """Product of the rows of all ranks, and those rows, which stay in the buffer."""
    get_workspace()
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    ranks = dist.get_process_group_ranks(group)
    rows = share.shape[0]
    whole = _buffers[f"{name}_{_pass_name(use)}"].view(-1)[: size * share.numel()]
    whole = whole.view(size * rows, share.shape[1])
    _, factor, layout, _ = operands(share, weight, use)
    width = factor.shape[0] if layout == "TN" else factor.shape[1]
    out = torch.empty((size * rows, width), dtype=dtype, device=share.device)
    whole[rank * rows : (rank + 1) * rows].copy_(share)
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
        kernel("gemm_into")(whole[here], factor, out[here], layout, use, False, "")
        for request in requests:
            request.wait()
    return out, whole


def multiply_scattered(
    rows: Tensor, weight: Tensor, name: str, use: str, dtype: torch.dtype, group: Any
) -> Tensor:
    """Product of all rows, summed over ranks, of which each keeps its share."""
    get_workspace()
    size = dist.get_world_size(group)
    _, factor, layout, _ = operands(rows, weight, use)
    width = factor.shape[0] if layout == "TN" else factor.shape[1]
    count = rows.shape[0]
    buffer = _buffers[f"{name}_{_pass_name(use)}"].view(-1)[: count * width].view(count, width)
    out = torch.empty((count // size, width), dtype=dtype, device=rows.device)
    works = []
    for part, product, share in zip(
        rows.chunk(_PIECES), buffer.chunk(_PIECES), out.chunk(_PIECES), strict=True
    ):
        kernel("gemm_into")(part, factor, product, layout, use, False, "")
        works.append(dist.reduce_scatter_tensor(share, product, group=group, async_op=True))
    for work in works:
        work.wait()
    return out


def _pass_name(use: str) -> str:
    return "fprop" if use == "forward" else use
