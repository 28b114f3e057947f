"""flash-attn's functions below autograd, which attention over rings of ranks calls."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.fused_attention import (
    AttentionForm,
    attention_backward,
    attention_forward,
)

Sizes = tuple[str, int, int, int]


def _form(sizes: Sizes, query: Tensor, options: dict[str, Any]) -> AttentionForm:
    layout, sequences, max_q, max_k = sizes
    causal = bool(options.get("causal"))
    mask = "none" if not causal else "causal" if max_q == max_k else "causal_bottom_right"
    scale = options.get("softmax_scale") or 1.0 / math.sqrt(query.shape[-1])
    left = options.get("window_size_left", options.get("window_size", (-1, -1))[0])
    right = options.get("window_size_right", options.get("window_size", (-1, -1))[1])
    window = (int(left), 0 if causal else int(right))
    dropout = float(options.get("dropout_p", 0.0))
    return AttentionForm(layout, mask, window, dropout, scale, sequences, max_q, max_k, "flash2")


def _named(names: tuple[str, ...], given: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Positions by the names they have."""
    options.update(zip(names, given, strict=False))


_REST = ("dropout_p", "softmax_scale", "causal", "window_size_left", "window_size_right")
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


def _whole(query: Tensor, key: Tensor) -> Sizes:
    return ("bshd", query.shape[0], query.shape[1], key.shape[1])


def _packed(options: dict[str, Any]) -> Sizes:
    sequences = options["cu_seqlens_q"].shape[0] - 1
    return ("thd", sequences, int(options["max_seqlen_q"]), int(options["max_seqlen_k"]))


def _forward(query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Any:
    out, stats, random = attention_forward(query, key, value, form)
    return out, stats, None, random


def _flash_attn_forward(q: Tensor, k: Tensor, v: Tensor, *given: Any, **options: Any) -> Any:
    """Output, log-sum-exps, no probabilities, the random state."""
    _named(_REST, given, options)
    return _forward(q, k, v, _form(_whole(q, k), q, options))


def _flash_attn_varlen_forward(
    q: Tensor, k: Tensor, v: Tensor, *given: Any, **options: Any
) -> Any:
    """As ``_flash_attn_forward``, of packed sequences."""
    _named((*_LENGTHS, *_REST), given, options)
    return _forward(q, k, v, _form(_packed(options), q, options))


def _backward(tensors: tuple[Any, ...], form: AttentionForm) -> Tensor:
    grad, q, k, v, out, stats, *grads = tensors
    dq, dk, dv = grads
    attention_backward(grad.contiguous(), q, k, v, out, stats, (dq, dk, dv), form)
    return stats


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    *given: Any,
    **options: Any,
) -> Tensor:
    """Gradients into ``dq``, ``dk``, ``dv``; the sums of rows."""
    _named(_REST, given, options)
    form = _form(_whole(q, k), q, options)
    return _backward((dout, q, k, v, out, softmax_lse, dq, dk, dv), form)


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    *given: Any,
    **options: Any,
) -> Tensor:
    """As ``_flash_attn_backward``, of packed sequences."""
    _named((*_LENGTHS, *_REST), given, options)
    form = _form(_packed(options), q, options)
    return _backward((dout, q, k, v, out, softmax_lse, dq, dk, dv), form)
