"""Fused attention kernels as flash-attn and Transformer Engine call them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .kernels import kernel
from .opaque import differentiable

# FlashAttention-2 pads its scratch memory to whole blocks of rows and of head width.
_ROWS = 128


class AttentionForm(NamedTuple):
    """How attention is called; everything but its tensors, in the order of the kernels' schemas.

    ``layout`` sbhd, bshd or thd; ``sequences`` of up to ``max_q``/``max_k`` tokens; ``mask``,
    ``window`` and ``kernel`` as ``traces.vocabulary`` names them.
    """

    layout: str
    mask: str
    window: tuple[int, int]
    dropout: float
    scale: float
    sequences: int
    max_q: int
    max_k: int
    kernel: str

    @classmethod
    def flash(
        cls,
        layout: str,
        sequences: int,
        longest: tuple[int, int],
        causal: bool,
        window: tuple[int, int],
        dropout: float,
        scale: float,
        kernel: str = "flash2",
    ) -> AttentionForm:
        """As FlashAttention is called; queries are aligned with the last keys where there are
        fewer."""
        most_q, most_k = longest
        mask = "none" if not causal else "causal" if most_q == most_k else "causal_bottom_right"
        window = (window[0], 0 if causal else window[1])
        return cls(layout, mask, window, dropout, scale, sequences, most_q, most_k, kernel)


def attention_forward(
    query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp of each row, and the random state of dropout."""
    out, stats, random = kernel("attention_fwd")(query, key, value, *form)
    return out, stats, random


def attention_backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    stats: Tensor,
    grads: Sequence[Tensor],
    form: AttentionForm,
) -> None:
    """Gradients into ``grads``.

    The gradient of queries is added up in fp32 scratch memory, beside a sum for each row. That is
    FlashAttention-2's; cuDNN does not publish its own, and adds up in fp32 all the same.
    FlashAttention-2 also makes gradients of keys and values for every query head and adds up those
    that share one.
    """
    heads, width = query.shape[-2:]
    rows = _padded_rows(query, form) * heads
    block = 32 if width <= 128 else 64
    padded_width = math.ceil(width / block) * block
    sums = torch.empty(rows, dtype=torch.float32, device=query.device)
    scratch = torch.empty(rows * padded_width, dtype=torch.float32, device=query.device)
    targets = tuple(grads)
    repeats = heads // key.shape[-2]
    expanded = form.kernel == "flash2" and repeats > 1
    if expanded:
        targets = (grads[0], _per_query_head(key, heads), _per_query_head(value, heads))
    kernel("attention_bwd")(grad_output, query, key, value, out, stats, *targets, *form)
    del sums, scratch
    if expanded:
        for made, grad in zip(targets[1:], grads[1:], strict=True):
            shape = (*grad.shape[:-1], repeats, grad.shape[-1])
            torch.sum(made.view(shape), -2, out=grad)


def _padded_rows(query: Tensor, form: AttentionForm) -> int:
    """Rows of scratch memory: each sequence in whole blocks, packed ones with a block to spare."""
    if form.layout == "thd":
        return int(query.shape[0]) + _ROWS * form.sequences
    return form.sequences * math.ceil(form.max_q / _ROWS) * _ROWS


def _per_query_head(tensor: Tensor, heads: int) -> Tensor:
    shape = (*tensor.shape[:-2], heads, tensor.shape[-1])
    return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)


@differentiable
def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
) -> tuple[Tensor, list[Tensor], Callable[..., Any]]:
    """Keeps queries, keys, values, the output, the log-sum-exps and the random state."""

    def gradient(
        query: Tensor, key: Tensor, value: Tensor, out: Tensor, stats: Tensor, _: Any, grad: Tensor
    ) -> tuple[Tensor, ...]:
        grads = tuple(each.new_empty(each.shape) for each in (query, key, value))
        attention_backward(grad.contiguous(), query, key, value, out, stats, grads, form)
        return grads

    out, stats, random = attention_forward(query, key, value, form)
    return out, [query, key, value, out, stats, random], gradient
