"""``te.pytorch.router``: the choice of experts and its loss, in one kernel each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel


class _TopK(torch.autograd.Function):
    """Keeps the map and the scores."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, bias: Tensor | None, topk: int, score: str
    ) -> tuple[Tensor, Tensor]:
        shape = logits.shape
        rows = logits.view(-1, shape[-1])
        probs, routing_map, scores = kernel("moe_router_fwd")(rows, bias, topk, score)
        ctx.save_for_backward(routing_map, scores)
        ctx.form = topk, score
        ctx.mark_non_differentiable(routing_map)
        return probs.view(shape), routing_map

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        routing_map, scores = ctx.saved_tensors
        rows = grad.contiguous().view(scores.shape)
        made = kernel("moe_router_bwd")(rows, routing_map, scores, *ctx.form)
        return made.view(grad.shape), None, None, None


class _Scores(torch.autograd.Function):
    """Keeps what the score function made on the way."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, topk: int, score: str) -> tuple[Tensor, Tensor]:
        routing_map, scores, intermediate = kernel("moe_aux_scores_fwd")(logits, topk, score)
        ctx.save_for_backward(intermediate)
        ctx.form = topk, score
        ctx.mark_non_differentiable(routing_map)
        return routing_map, scores

    @staticmethod
    def backward(ctx: Any, _: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (intermediate,) = ctx.saved_tensors
        made = kernel("moe_aux_scores_bwd")(grad.contiguous(), intermediate, *ctx.form)
        return made, None, None


class _AuxLoss(torch.autograd.Function):
    """Keeps a coefficient and the counts of tokens."""

    @staticmethod
    def forward(
        ctx: Any,
        probs: Tensor,
        counts: Tensor,
        tokens: int,
        experts: int,
        topk: int,
        coefficient: float,
    ) -> Tensor:
        loss, kept = kernel("moe_aux_loss_fwd")(probs, counts, tokens, experts, topk, coefficient)
        ctx.save_for_backward(kept, counts)
        ctx.rows = probs.shape[0]
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kept, counts = ctx.saved_tensors
        made = kernel("moe_aux_loss_bwd")(kept, counts, grad, ctx.rows)
        return made, None, None, None, None, None


def fused_topk_with_score_function(
    logits: Tensor,
    topk: int,
    use_pre_softmax: bool,
    num_groups: int | None,
    group_topk: int | None,
    scaling_factor: float | None,
    score_function: str,
    expert_bias: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Weights of the chosen experts and the mask of choices, ``[tokens, experts]`` both."""
    probs, routing_map = _TopK.apply(logits, expert_bias, topk, score_function)
    return probs, routing_map


def fused_compute_score_for_moe_aux_loss(
    logits: Tensor, topk: int, score_function: str
) -> tuple[Tensor, Tensor]:
    """The mask of choices and all scores, for the balancing loss."""
    routing_map, scores = _Scores.apply(logits, topk, score_function)
    return routing_map, scores


def fused_moe_aux_loss(
    probs: Tensor,
    tokens_per_expert: Tensor,
    total_num_tokens: int,
    num_experts: int,
    topk: int,
    coeff: float,
) -> Tensor:
    """The balancing loss."""
    loss: Tensor = _AuxLoss.apply(
        probs, tokens_per_expert, int(total_num_tokens), num_experts, topk, coeff
    )
    return loss
