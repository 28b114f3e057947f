"""``te.pytorch.permutation``: tokens into the order of their experts and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal


class _Permute(torch.autograd.Function):
    """Keeps the map of rows; the backward pass adds up the copies of each token."""

    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, routing_map: Tensor, probs: Tensor | None, rows: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        row_id_map = kernel("moe_row_id_map")(routing_map)
        made = kernel("moe_permute")(tokens, row_id_map, probs, rows)
        ctx.save_for_backward(row_id_map)
        ctx.rows = tokens.shape[0]
        ctx.mark_non_differentiable(row_id_map)
        return made[0], row_id_map, made[1] if len(made) > 1 else None

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor, _: Any, grad_probs: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        (row_id_map,) = ctx.saved_tensors
        made = kernel("moe_unpermute")(grad.contiguous(), row_id_map, None, grad_probs, ctx.rows)
        return made[0], None, made[1] if len(made) > 1 else None, None


class _Unpermute(torch.autograd.Function):
    """Keeps the map of rows and, when it weighs them, rows and weights."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, row_id_map: Tensor, probs: Tensor | None, tokens: int
    ) -> Tensor:
        (out,) = kernel("moe_unpermute")(rows, row_id_map, probs, None, tokens)
        ctx.count = rows.shape[0]
        ctx.save_for_backward(row_id_map, probs, None if probs is None else rows)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        row_id_map, probs, rows = ctx.saved_tensors
        grad = grad.contiguous()
        if probs is None:
            (made,) = kernel("moe_permute")(grad, row_id_map, None, ctx.count)
            return made, None, None, None
        made, grad_probs = kernel("moe_unpermute_bwd")(grad, rows, row_id_map, probs)
        return made, None, grad_probs, None


class _SortChunks(torch.autograd.Function):
    """Keeps the map of rows."""

    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, splits: Tensor, order: Tensor, probs: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        row_id_map = kernel("moe_chunk_row_id_map")(splits, order, tokens.shape[0])
        made = kernel("moe_sort_chunks")(tokens, row_id_map, probs)
        ctx.save_for_backward(row_id_map)
        return made[0], made[1] if len(made) > 1 else None

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_probs: Tensor | None) -> tuple[Tensor | None, ...]:
        (row_id_map,) = ctx.saved_tensors
        made = kernel("moe_sort_chunks")(grad.contiguous(), row_id_map, grad_probs)
        return made[0], None, None, made[1] if len(made) > 1 else None


def _require_mask(map_type: str) -> None:
    if map_type != "mask":
        raise refusal("moe_permute.map_type", "maps by index", "mask")


def moe_permute(
    inp: Tensor,
    routing_map: Tensor,
    num_out_tokens: int = -1,
    max_token_num: int = -1,
    map_type: str = "mask",
) -> tuple[Tensor, Tensor]:
    """Rows in the order of their experts, and the map back."""
    _require_mask(map_type)
    out, row_id_map, _ = _Permute.apply(inp, routing_map, None, num_out_tokens)
    return out, row_id_map


def moe_permute_with_probs(
    inp: Tensor, probs: Tensor, routing_map: Tensor, num_out_tokens: int = -1
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and their weights in the order of their experts, and the map back."""
    out, row_id_map, permuted = _Permute.apply(inp, routing_map, probs, num_out_tokens)
    return out, permuted, row_id_map


def moe_unpermute(
    inp: Tensor,
    row_id_map: Tensor,
    merging_probs: Tensor | None = None,
    restore_shape: Any = None,
    map_type: str = "mask",
    probs: Tensor | None = None,
) -> Tensor:
    """Rows added up to tokens, weighted if ``merging_probs`` are given."""
    _require_mask(map_type)
    weights = probs if merging_probs is None else merging_probs
    tokens = (restore_shape or inp.shape)[0]
    out: Tensor = _Unpermute.apply(inp, row_id_map, weights, tokens)
    return out


def moe_sort_chunks_by_index(inp: Tensor, split_sizes: Tensor, sorted_index: Tensor) -> Tensor:
    """Chunks of rows in another order."""
    out: Tensor = _SortChunks.apply(inp, split_sizes, sorted_index, None)[0]
    return out


def moe_sort_chunks_by_index_with_probs(
    inp: Tensor, probs: Tensor, split_sizes: Tensor, sorted_index: Tensor
) -> tuple[Tensor, Tensor]:
    """Chunks of rows and their weights in another order."""
    out, permuted = _SortChunks.apply(inp, split_sizes, sorted_index, probs)
    return out, permuted
