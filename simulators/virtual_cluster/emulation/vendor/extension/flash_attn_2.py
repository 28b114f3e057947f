"""``flash_attn_2_cuda``: FlashAttention-2's kernels as the library's own Python calls them.

Versions add arguments between others; the numbers among them have always come in one order.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.fused_attention import (
    AttentionForm,
    attention_backward,
    attention_forward,
)


def check_types(query: Tensor, *others: Tensor) -> None:
    """Raises what the library raises of types that it does not take."""
    if query.element_size() > 2:
        types = f"not {query.dtype} (as norms are under autocast)"
        raise RuntimeError(f"FlashAttention only support fp16 and bf16 data type, {types}")
    if any(each.dtype != query.dtype for each in others):
        raise RuntimeError("query, key and value must have the same dtype")


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


def _forward(layout: str, q: Tensor, k: Tensor, v: Tensor, *args: Any, **named: Any) -> list[Any]:
    """Output, log-sum-exps, no probabilities, the random state."""
    check_types(q, k, v)
    out, stats, random = attention_forward(q, k, v, _form(q, k, layout, args, named))
    return [out, stats, torch.empty(0, dtype=q.dtype, device=q.device), random]


def fwd_kvcache(*args: Any, **named: Any) -> list[Any]:
    """Output and log-sum-exps over cached keys."""
    return _forward("bshd", *args, **named)[:2]


def _backward(layout: str, *args: Any, **named: Any) -> list[Any]:
    """Gradients of queries, keys and values, sums of rows."""
    (grad, q, k, v, out, stats), grads = args[:6], args[6:9]
    made = tuple(
        torch.empty_like(like) if each is None else each
        for each, like in zip(grads, (q, k, v), strict=True)
    )
    form = _form(q, k, layout, args[9:], named)
    attention_backward(grad, q, k, v, out, stats, made, form)
    return [*made, stats]


# Of rows of a batch, and of packed sequences.
fwd, varlen_fwd = partial(_forward, "bshd"), partial(_forward, "thd")
bwd, varlen_bwd = partial(_backward, "bshd"), partial(_backward, "thd")
