"""``flash_attn_2_cuda``: FlashAttention-2's kernels as the library's own Python calls them.

Versions add arguments between others; the numbers among them have always come in one order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.fused_attention import (
    AttentionForm,
    attention_backward,
    attention_forward,
)


def _form(query: Tensor, key: Tensor, layout: str, args: Any, named: Any) -> AttentionForm:
    numbers = [each for each in (*args, *named.values()) if isinstance(each, (int, float))]
    if layout == "thd":
        longest, numbers = (int(numbers[0]), int(numbers[1])), numbers[2:]
        del numbers[2]  # whether outputs are zeroed first
        offsets = next(each for each in args if getattr(each, "dtype", None) == torch.int32)
        sequences = offsets.shape[0] - 1
    else:
        longest, sequences = (query.shape[1], key.shape[1]), query.shape[0]
    dropout, scale, causal, left, right = numbers[:5]
    window = (int(left), int(right))
    return AttentionForm.flash(
        layout, sequences, longest, bool(causal), window, float(dropout), float(scale)
    )


def _forward(layout: str, q: Tensor, k: Tensor, v: Tensor, args: Any, named: Any) -> list[Any]:
    out, stats, random = attention_forward(q, k, v, _form(q, k, layout, args, named))
    return [out, stats, torch.empty(0, dtype=q.dtype, device=q.device), random]


def fwd(q: Tensor, k: Tensor, v: Tensor, *args: Any, **named: Any) -> list[Any]:
    """Output, log-sum-exps, no probabilities, the random state."""
    return _forward("bshd", q, k, v, args, named)


def varlen_fwd(q: Tensor, k: Tensor, v: Tensor, *args: Any, **named: Any) -> list[Any]:
    """As ``fwd``, of packed sequences."""
    return _forward("thd", q, k, v, args, named)


def fwd_kvcache(q: Tensor, k: Tensor, v: Tensor, *args: Any, **named: Any) -> list[Any]:
    """Output and log-sum-exps over cached keys."""
    return _forward("bshd", q, k, v, args, named)[:2]


def _backward(
    layout: str, tensors: tuple[Tensor, ...], grads: Any, args: Any, named: Any
) -> list[Any]:
    grad, q, k, v, out, stats = tensors
    made = tuple(
        torch.empty_like(like) if each is None else each
        for each, like in zip(grads, (q, k, v), strict=True)
    )
    form = _form(q, k, layout, args, named)
    attention_backward(grad, q, k, v, out, stats, (made[0], made[1], made[2]), form)
    return [*made, stats]


def bwd(*args: Any, **named: Any) -> list[Any]:
    """Gradients of queries, keys and values, sums of rows."""
    return _backward("bshd", args[:6], args[6:9], args[9:], named)


def varlen_bwd(*args: Any, **named: Any) -> list[Any]:
    """As ``bwd``, of packed sequences."""
    return _backward("thd", args[:6], args[6:9], args[9:], named)
