"""Routers as frameworks write them: each returns tokens per expert, (experts,)."""

from __future__ import annotations

import torch


def scattered(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Megatron-core's."""
    _, chosen = torch.topk(logits, top_k, dim=1)
    mask = torch.zeros_like(logits).int().scatter(1, chosen, 1).bool()
    return mask.sum(dim=0).long()


def placed(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Megatron-core's, deterministic."""
    scores, chosen = torch.topk(logits, top_k, dim=1)
    rows = torch.arange(len(logits)).unsqueeze(1)
    mask = torch.zeros_like(logits)
    mask.index_put_((rows, chosen), torch.ones_like(scores))
    return mask.bool().sum(dim=0)


def binned(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """TorchTitan's."""
    experts = logits.shape[1]
    chosen = torch.topk(torch.sigmoid(logits), top_k, dim=1)[1]
    counts = torch.histc(chosen.view(-1).float(), bins=experts, min=0, max=experts)
    return counts.long()


def sorted_and_binned(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Transformers', for grouped matrix products."""
    experts = logits.shape[1]
    chosen = torch.topk(torch.softmax(logits, -1), top_k, dim=-1)[1].reshape(-1)
    in_order, _ = torch.sort(chosen)
    return torch.histc(in_order.float(), bins=experts, min=0, max=experts - 1).long()


def one_hot(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Transformers', expert by expert: a class more than there are experts."""
    experts = logits.shape[1]
    chosen = torch.topk(logits, top_k, dim=-1)[1]
    mask = torch.zeros(*chosen.shape, experts + 1, dtype=torch.int64)
    mask.scatter_(-1, chosen.unsqueeze(-1), 1)
    return mask.permute(2, 1, 0).sum(dim=(-1, -2))[:experts]


def counted(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Plain."""
    chosen = torch.sort(logits, dim=-1, descending=True)[1][:, :top_k]
    return torch.bincount(chosen.flatten(), minlength=logits.shape[1])


def compared(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Expert by expert, by comparison."""
    chosen = torch.topk(logits, top_k, dim=-1)[1]
    return torch.stack([(chosen == expert).sum() for expert in range(logits.shape[1])])


def weighed(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """By weights above zero, as of Shazeer et al. 2017 (https://arxiv.org/abs/1701.06538)."""
    weights, chosen = torch.softmax(logits, 1).topk(top_k, dim=1)
    gates = torch.zeros_like(logits).scatter(1, chosen, weights)
    return (gates > 0).sum(0)


ROUTERS = (scattered, placed, binned, sorted_and_binned, one_hot, counted, compared, weighed)
