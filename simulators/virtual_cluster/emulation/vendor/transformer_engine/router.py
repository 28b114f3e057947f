"""``te.pytorch.router``: the choice of experts and its loss, in one kernel each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.gradients import differentiable
from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel


@differentiable
def _topk(
    logits: Tensor, bias: Tensor | None, topk: int, score: str
) -> tuple[tuple[Tensor, Tensor], list[Tensor], Callable[..., Any]]:
    """Keeps the map and the scores."""
    shape = logits.shape
    rows = logits.view(-1, shape[-1])
    probs, routing_map, scores = kernel("moe_router_fwd")(rows, bias, topk, score)

    def gradient(routing_map: Tensor, scores: Tensor, grad: Tensor, _: Any) -> Tensor:
        rows = grad.contiguous().view(scores.shape)
        made: Tensor = kernel("moe_router_bwd")(rows, routing_map, scores, topk, score)
        return made.view(shape)

    return (probs.view(shape), routing_map), [routing_map, scores], gradient


@differentiable
def _scores(
    logits: Tensor, topk: int, score: str
) -> tuple[tuple[Tensor, Tensor], list[Tensor], Callable[..., Any]]:
    """Keeps what the score function made on the way."""
    routing_map, scores, intermediate = kernel("moe_aux_scores_fwd")(logits, topk, score)

    def gradient(intermediate: Tensor, _: Any, grad: Tensor) -> Any:
        return kernel("moe_aux_scores_bwd")(grad.contiguous(), intermediate, topk, score)

    return (routing_map, scores), [intermediate], gradient


@differentiable
def _aux_loss(
    probs: Tensor, counts: Tensor, *form: Any
) -> tuple[Tensor, list[Tensor], Callable[..., Any]]:
    """Keeps a coefficient and the counts of tokens."""
    loss, kept = kernel("moe_aux_loss_fwd")(probs, counts, *form)
    rows = probs.shape[0]

    def gradient(kept: Tensor, counts: Tensor, grad: Tensor) -> Any:
        return kernel("moe_aux_loss_bwd")(kept, counts, grad, rows)

    return loss, [kept, counts], gradient


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
    probs, routing_map = _topk(logits, expert_bias, topk, score_function)
    return probs, routing_map


def fused_compute_score_for_moe_aux_loss(
    logits: Tensor, topk: int, score_function: str
) -> tuple[Tensor, Tensor]:
    """The mask of choices and all scores, for the balancing loss."""
    routing_map, scores = _scores(logits, topk, score_function)
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
    form = (int(total_num_tokens), num_experts, topk, coeff)
    loss: Tensor = _aux_loss(probs, tokens_per_expert, *form)
    return loss
