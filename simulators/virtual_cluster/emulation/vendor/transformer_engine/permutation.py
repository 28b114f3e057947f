"""``te.pytorch.permutation``: tokens into the order of their experts and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.gradients import differentiable
from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal


def _pair(made: list[Tensor]) -> tuple[Tensor, Tensor | None]:
    return made[0], made[1] if len(made) > 1 else None


@differentiable
def _permute(
    tokens: Tensor, routing_map: Tensor, probs: Tensor | None, rows: int
) -> tuple[tuple[Any, ...], list[Tensor], Callable[..., Any]]:
    """Keeps the map of rows; the backward pass adds up the copies of each token."""
    row_id_map = kernel("moe_row_id_map")(routing_map)
    out, permuted = _pair(kernel("moe_permute")(tokens, row_id_map, probs, rows))
    count = tokens.shape[0]

    def gradient(row_id_map: Tensor, grad: Tensor, _: Any, grad_probs: Tensor | None) -> Any:
        given = (grad.contiguous(), row_id_map, None, grad_probs, count)
        made, of_probs = _pair(kernel("moe_unpermute")(*given))
        return made, None, of_probs

    return (out, row_id_map, permuted), [row_id_map], gradient


@differentiable
def _unpermute(
    rows: Tensor, row_id_map: Tensor, probs: Tensor | None, tokens: int
) -> tuple[Tensor, list[Any], Callable[..., Any]]:
    """Keeps the map of rows and, when it weighs them, rows and weights."""
    (out,) = kernel("moe_unpermute")(rows, row_id_map, probs, None, tokens)
    count = rows.shape[0]

    def gradient(row_id_map: Tensor, probs: Any, rows: Any, grad: Tensor) -> Any:
        grad = grad.contiguous()
        if probs is None:
            return kernel("moe_permute")(grad, row_id_map, None, count)[0]
        made, grad_probs = kernel("moe_unpermute_bwd")(grad, rows, row_id_map, probs)
        return made, None, grad_probs

    return out, [row_id_map, probs, None if probs is None else rows], gradient


@differentiable
def _sort_chunks(
    tokens: Tensor, probs: Tensor | None, splits: Tensor, order: Tensor
) -> tuple[tuple[Any, ...], list[Tensor], Callable[..., Any]]:
    """Keeps the map of rows."""
    row_id_map = kernel("moe_chunk_row_id_map")(splits, order, tokens.shape[0])

    def gradient(row_id_map: Tensor, grad: Tensor, grad_probs: Tensor | None) -> Any:
        return _pair(kernel("moe_sort_chunks")(grad.contiguous(), row_id_map, grad_probs))

    return _pair(kernel("moe_sort_chunks")(tokens, row_id_map, probs)), [row_id_map], gradient


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
    out, row_id_map, _ = _permute(inp, routing_map, None, num_out_tokens)
    return out, row_id_map


def moe_permute_with_probs(
    inp: Tensor, probs: Tensor, routing_map: Tensor, num_out_tokens: int = -1
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and their weights in the order of their experts, and the map back."""
    out, row_id_map, permuted = _permute(inp, routing_map, probs, num_out_tokens)
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
    out: Tensor = _unpermute(inp, row_id_map, weights, (restore_shape or inp.shape)[0])
    return out


def moe_sort_chunks_by_index(inp: Tensor, split_sizes: Tensor, sorted_index: Tensor) -> Tensor:
    """Chunks of rows in another order."""
    out: Tensor = _sort_chunks(inp, None, split_sizes, sorted_index)[0]
    return out


def moe_sort_chunks_by_index_with_probs(
    inp: Tensor, probs: Tensor, split_sizes: Tensor, sorted_index: Tensor
) -> tuple[Tensor, Tensor]:
    """Chunks of rows and their weights in another order."""
    out, permuted = _sort_chunks(inp, probs, split_sizes, sorted_index)
    return out, permuted
