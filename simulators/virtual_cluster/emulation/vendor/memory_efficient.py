"""``xformers.ops``: attention of whole batches, through FlashAttention-2's kernels as there."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .fused_attention import AttentionForm, fused_attention
from .opaque import elementwise
from .refuse import refusal


class AttentionBias:
    """What attention leaves out."""


class LowerTriangularMask(AttentionBias):
    """Tokens that come later."""


class BlockDiagonalMask(AttentionBias):
    """Sequences that are packed into one see themselves only.

    ``lengths`` of their queries and keys; ``window`` as FlashAttention has it.
    """

    mask = "none"

    def __init__(
        self, lengths: tuple[list[int], list[int]], window: tuple[int, int] = (-1, -1)
    ) -> None:
        self.lengths = lengths
        self.window = window

    @classmethod
    def from_seqlens(cls, q_seqlen: Any, kv_seqlen: Any = None, *_: Any, **__: Any) -> Any:
        """Of numbers of tokens on the host."""
        return cls((list(q_seqlen), list(q_seqlen if kv_seqlen is None else kv_seqlen)))

    def make_causal(self) -> Any:
        """The same, without tokens that come later."""
        return BlockDiagonalCausalMask(self.lengths)

    def make_local_attention(self, window_size: int) -> Any:
        """The same, with no more than so many tokens."""
        return type(self)(self.lengths, (window_size - 1, -1))


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """Of packed sequences, without tokens that come later."""

    mask = "causal"


class AttentionOpBase:
    """Named in signatures."""


def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: Any = None,
) -> Tensor:
    """Of ``[batch, tokens, heads, width]``, or with one head and no dimension for it."""
    known = (LowerTriangularMask, BlockDiagonalMask, Tensor)
    if attn_bias is not None and not isinstance(attn_bias, known):
        named = type(attn_bias).__name__
        allowed = "None, a tensor, LowerTriangularMask or BlockDiagonalMask"
        raise refusal(f"xformers.ops.memory_efficient_attention.{named}", "this bias", allowed)
    scale = scale if scale is not None else 1.0 / math.sqrt(query.shape[-1])
    if isinstance(attn_bias, BlockDiagonalMask):
        queries, keys = attn_bias.lengths
        most = max(queries), max(keys)
        mask, window = attn_bias.mask, attn_bias.window
        form = AttentionForm("thd", mask, window, p, scale, len(queries), *most, "flash2")
        packed = (each.squeeze(0) for each in (query, key, value))
        return fused_attention(*packed, form).unsqueeze(0)
    flat = query.dim() == 3
    if flat:
        query, key, value = (each.unsqueeze(2) for each in (query, key, value))
    b, tokens, keys = query.shape[0], query.shape[1], key.shape[1]
    mask = "causal" if isinstance(attn_bias, LowerTriangularMask) else "none"
    form = AttentionForm("bshd", mask, (-1, -1), p, scale, b, tokens, keys, "flash2")
    out: Tensor = fused_attention(query, key, value, form)
    return out.squeeze(2) if flat else out


class SwiGLU(torch.nn.Module):
    """Both projections as one product, the gate, and the way back."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = True,
        **_: Any,
    ) -> None:
        super().__init__()
        self.w12 = torch.nn.Linear(in_features, 2 * hidden_features, bias=bias)
        self.w3 = torch.nn.Linear(hidden_features, out_features or in_features, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Of the last dimension."""
        gate, up = self.w12(x).chunk(2, dim=-1)
        return self.w3(elementwise("swiglu", gate, up))
