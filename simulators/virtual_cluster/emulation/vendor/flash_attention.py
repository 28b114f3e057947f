"""``flash_attn``: FlashAttention-2's functions, and the packing of padded batches."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.fused_attention import (
    AttentionForm,
    fused_attention,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal, refused

# Options of FlashAttention-2 and -3 that are not emulated, and the value that asks for nothing.
_NEUTRAL = {"alibi_slopes": None, "attention_chunk": 0, "block_table": None, "softcap": 0.0}


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    form: tuple[str, int, int, int],
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    options: dict[str, Any],
    kernel: str = "flash2",
) -> Any:
    for name, neutral in _NEUTRAL.items():
        if options.pop(name, neutral) != neutral:
            raise refusal(f"flash_attn.{name}", "this option", str(neutral))
    hands_out = options.pop("return_attn_probs", False)
    if hands_out and dropout_p:
        raise refusal("flash_attn.return_attn_probs", "probabilities under dropout", "False")
    for name in ("deterministic", "num_splits", "pack_gqa", "sm_margin"):
        options.pop(name, None)
    if used := [name for name, given in options.items() if given is not None]:
        raise refusal(f"flash_attn.{used[0]}", "this option")
    layout, sequences, max_q, max_k = form
    scale = softmax_scale if softmax_scale is not None else 1.0 / math.sqrt(query.shape[-1])
    # Queries are aligned with the last keys when there are fewer.
    mask = "none" if not causal else "causal" if max_q == max_k else "causal_bottom_right"
    window = (window_size[0], 0 if causal else window_size[1])
    full = AttentionForm(layout, mask, window, dropout_p, scale, sequences, max_q, max_k, kernel)
    out: Tensor = fused_attention(query, key, value, full)
    if not hands_out:
        return out
    # The sums of each row are its second result; without dropout the matrix itself is empty.
    heads = query.shape[-2]
    rows = (heads, query.shape[0]) if layout == "thd" else (sequences, heads, max_q)
    return out, query.new_empty(rows, dtype=torch.float32), query.new_empty(0)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    **options: Any,
) -> Any:
    """Attention of ``[batch, tokens, heads, width]``."""
    form = ("bshd", q.shape[0], q.shape[1], k.shape[1])
    return _attend(q, k, v, form, dropout_p, softmax_scale, causal, window_size, options)


def flash_attn_qkvpacked_func(qkv: Tensor, *arguments: Any, **options: Any) -> Any:
    """Attention of ``[batch, tokens, 3, heads, width]``."""
    return flash_attn_func(*qkv.unbind(dim=2), *arguments, **options)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *arguments: Any, **options: Any) -> Any:
    """Attention with keys and values in ``[batch, tokens, 2, heads, width]``."""
    return flash_attn_func(q, *kv.unbind(dim=2), *arguments, **options)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    **options: Any,
) -> Any:
    """Attention of packed sequences, ``[tokens, heads, width]``."""
    form = ("thd", cu_seqlens_q.shape[0] - 1, int(max_seqlen_q), int(max_seqlen_k))
    return _attend(q, k, v, form, dropout_p, softmax_scale, causal, window_size, options)


# Its name in FlashAttention-1, which Megatron-LM asked for until 2023.
flash_attn_unpadded_func = flash_attn_varlen_func


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *arguments: Any, **options: Any
) -> Any:
    """Attention of packed sequences, ``[tokens, 3, heads, width]``."""
    query, key, value = qkv.unbind(dim=1)
    return flash_attn_varlen_func(
        query,
        key,
        value,
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        *arguments,
        **options,
    )


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *arguments: Any, **options: Any) -> Any:
    """Attention of packed sequences with keys and values in ``[tokens, 2, heads, width]``."""
    return flash_attn_varlen_func(q, *kv.unbind(dim=1), *arguments, **options)


def flash_attn_3_func(q: Tensor, k: Tensor, v: Tensor, *arguments: Any, **options: Any) -> Any:
    """FlashAttention-3 of ``[batch, tokens, heads, width]``."""
    form = ("bshd", q.shape[0], q.shape[1], k.shape[1])
    return _flash_3(q, k, v, form, *arguments, **options)


def flash_attn_3_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *_: Any,
    **options: Any,
) -> Any:
    """FlashAttention-3 of packed sequences, ``[tokens, heads, width]``."""
    form = ("thd", cu_seqlens_q.shape[0] - 1, int(max_seqlen_q), int(max_seqlen_k))
    return _flash_3(q, k, v, form, **options)


def _flash_3(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    form: tuple[str, int, int, int],
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    **options: Any,
) -> Any:
    made = _attend(q, k, v, form, 0.0, softmax_scale, causal, window_size, options, "flash3")
    return made[:2] if isinstance(made, tuple) else made


flash_attn_with_kvcache = refused("flash_attn_with_kvcache", "attention for inference")
