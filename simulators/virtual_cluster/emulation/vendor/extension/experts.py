"""Routing and moving tokens to experts (the library's mask-based permutation is Triton's)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.opaque import launch


def fused_topk_with_score_function_fwd(
    logits: Tensor,
    topk: int,
    use_pre_softmax: bool,
    num_groups: int | None,
    group_topk: int | None,
    scaling_factor: float | None,
    score_function: str,
    expert_bias: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    """Probabilities, the mask, scores."""
    return tuple(kernel("moe_router_fwd")(logits, expert_bias, topk, str(score_function)))


def fused_topk_with_score_function_bwd(*args: Any, **named: Any) -> Tensor:
    """The gradient of the logits, which newer versions have allocated before."""
    tensors, topk, score = _parts(args, named)
    mask, scores, grad_probs = tensors[:3]
    return _filled(kernel("moe_router_bwd")(grad_probs, mask, scores, topk, score), tensors[3:])


def _parts(args: Any, named: Any) -> tuple[list[Tensor], int, str]:
    """The tensors, how many experts a token has and the score, in the order that versions share:
    numbers before the first tensor are sizes."""
    values = [*args, *named.values()]
    first = next(at for at, each in enumerate(values) if isinstance(each, Tensor))
    rest = values[first:]
    numbers = [each for each in rest if isinstance(each, int) and not isinstance(each, bool)]
    score = next(each for each in rest if isinstance(each, str))
    return [each for each in rest if isinstance(each, Tensor)], numbers[0], score


def _filled(made: Tensor, place: list[Tensor]) -> Tensor:
    return place[0] if place else made


def fused_score_for_moe_aux_loss_fwd(
    logits: Tensor, topk: int, score_function: str, *rest: Any, **options: Any
) -> tuple[Tensor, ...]:
    """Scores, the mask, what the backward pass needs."""
    mask, scores, kept = kernel("moe_aux_scores_fwd")(logits, topk, str(score_function))
    return scores, mask, kept


def fused_score_for_moe_aux_loss_bwd(*args: Any, **named: Any) -> Tensor:
    """The gradient of the logits, which newer versions have allocated before."""
    tensors, topk, score = _parts(args, named)
    kept, grad_scores = tensors[:2]
    return _filled(kernel("moe_aux_scores_bwd")(grad_scores, kept, topk, score), tensors[2:])


def fused_moe_aux_loss_fwd(
    probs: Tensor,
    tokens_per_expert: Tensor,
    total_num_tokens: int,
    num_experts: int,
    num_rows: int,
    num_cols: int,
    topk: int,
    coeff: float,
) -> tuple[Tensor, ...]:
    """The loss and its coefficient."""
    args = (int(total_num_tokens), num_experts, topk, float(coeff))
    return tuple(kernel("moe_aux_loss_fwd")(probs, tokens_per_expert, *args))


def fused_moe_aux_loss_bwd(
    Const_buf: Tensor,  # noqa: N803 - the library's name
    tokens_per_expert: Tensor,
    num_rows: int,
    num_cols: int,
    grad_aux_loss: Tensor,
) -> Tensor:
    return kernel("moe_aux_loss_bwd")(Const_buf, tokens_per_expert, grad_aux_loss, num_rows)


def _moved(like: Tensor, shape: Sequence[int], *read: Tensor) -> Tensor:
    out = torch.empty(tuple(shape), dtype=like.dtype, device="cuda")
    launch("moe_permutation", [out], [each for each in (like, *read) if each.numel()])
    return out


def moe_permute_fwd(
    input: Tensor,
    dtype: Any,
    indices: Tensor,
    num_out_tokens: int,
    workspace: list[Tensor],
    max_expanded_token_num: int,
) -> tuple[Any, ...]:
    """A row for each token's experts, where each goes, the workspace of the sort."""
    topk = indices.shape[1] if indices.dim() > 1 else 1
    rows = num_out_tokens or input.shape[0] * topk
    row_id_map = torch.empty(input.shape[0] * topk, dtype=torch.int32, device="cuda")
    launch("moe_sort", [row_id_map], [indices])
    return _moved(input, (rows, input.shape[-1]), row_id_map), row_id_map, workspace


def moe_permute_bwd(
    input: Tensor,
    dtype: Any,
    row_id_map: Tensor,
    prob: Tensor,
    num_tokens: int,
    topK: int,  # noqa: N803
) -> Tensor:
    return _moved(input, (num_tokens, input.shape[-1]), row_id_map, prob)


moe_unpermute_fwd = moe_permute_bwd


def moe_unpermute_bwd(
    input_bwd: Tensor, input_fwd: Tensor, dtype: Any, row_id_map: Tensor, prob: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the rows and of the probabilities."""
    return _moved(input_fwd, input_fwd.shape, input_bwd, row_id_map), torch.empty_like(prob)


def pad_rows(input: Tensor, output: Tensor, *rows: Any) -> None:
    """Rows of each group into, or out of, a buffer with room to a multiple."""
    kernel("pad_rows")(input, output)
