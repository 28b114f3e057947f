"""Shapes of routing and of moving tokens to experts."""

from __future__ import annotations

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels.registry import (
    empty,
    shapes_of,
)


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
