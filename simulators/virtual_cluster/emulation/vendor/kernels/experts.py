"""Shapes of routing and of moving tokens to experts."""

from __future__ import annotations

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels.registry import (
    empty,
    shapes_of,
)


@shapes_of
def moe_row_id_map(routing_map: Tensor) -> Tensor:
    tokens, experts = routing_map.shape
    return empty(routing_map, (tokens, 2 * experts + 1), torch.int32)


@shapes_of
def moe_chunk_row_id_map(splits: Tensor, order: Tensor, rows: int) -> Tensor:
    return empty(splits, (rows,), torch.int32)


@shapes_of
def moe_permute(
    tokens: Tensor, row_id_map: Tensor, probs: Tensor | None, rows: int
) -> list[Tensor]:
    made = [empty(tokens, (rows, tokens.shape[-1]))]
    return made if probs is None else [*made, empty(probs, (rows,))]


@shapes_of
def moe_unpermute(
    permuted: Tensor,
    row_id_map: Tensor,
    probs: Tensor | None,
    permuted_probs: Tensor | None,
    rows: int,
) -> list[Tensor]:
    made = [empty(permuted, (rows, permuted.shape[-1]))]
    if permuted_probs is None:
        return made
    experts = (row_id_map.shape[-1] - 1) // 2
    return [*made, empty(permuted_probs, (rows, experts))]


@shapes_of
def moe_sort_chunks(tokens: Tensor, row_id_map: Tensor, probs: Tensor | None) -> list[Tensor]:
    made = [empty(tokens, tokens.shape)]
    return made if probs is None else [*made, empty(probs, probs.shape)]


@shapes_of
def moe_router_fwd(
    logits: Tensor, expert_bias: Tensor | None, topk: int, score: str
) -> tuple[Tensor, Tensor, Tensor]:
    shape = logits.shape
    return empty(logits, shape), empty(logits, shape, torch.bool), empty(logits, shape)


@shapes_of
def moe_aux_scores_fwd(logits: Tensor, topk: int, score: str) -> tuple[Tensor, Tensor, Tensor]:
    shape = logits.shape
    return empty(logits, shape, torch.bool), empty(logits, shape), empty(logits, shape)


@shapes_of
def moe_aux_loss_fwd(
    probs: Tensor,
    tokens_per_expert: Tensor,
    tokens: int,
    experts: int,
    topk: int,
    coefficient: float,
) -> tuple[Tensor, Tensor]:
    return empty(probs, ()), empty(probs, (), torch.float32)


@shapes_of
def moe_aux_loss_bwd(
    coefficient: Tensor, tokens_per_expert: Tensor, grad_loss: Tensor, rows: int
) -> Tensor:
    return empty(grad_loss, (rows, tokens_per_expert.shape[0]))
