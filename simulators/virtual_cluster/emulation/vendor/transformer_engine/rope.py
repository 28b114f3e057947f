"""``te.pytorch.attention.rope``: rotary positions in one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal


class _Rope(torch.autograd.Function):
    """Keeps the frequencies."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, frequencies: Tensor, layout: str, interleaved: bool
    ) -> Tensor:
        frequencies = frequencies.float()
        ctx.save_for_backward(frequencies)
        ctx.form = layout, interleaved
        out: Tensor = kernel("rope_fwd")(tensor, frequencies, layout, interleaved)
        return out

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        (frequencies,) = ctx.saved_tensors
        return kernel("rope_bwd")(grad_output, frequencies, *ctx.form), None, None, None


class _JoinedRope(torch.autograd.Function):
    """Keeps the frequencies; takes the joined projection apart on the way."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        query_frequencies: Tensor,
        key_frequencies: Tensor,
        split: list[int],
        layout: str,
        interleaved: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        frequencies = query_frequencies.float(), key_frequencies.float()
        ctx.save_for_backward(*frequencies)
        ctx.form = split, layout, interleaved
        query, key, value = kernel("rope_qkv_fwd")(qkv, *frequencies, *ctx.form)
        return query, key, value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        parts = [gradient.contiguous() for gradient in gradients]
        grad = kernel("rope_qkv_bwd")(*parts, *ctx.saved_tensors, *ctx.form)
        return grad, None, None, None, None, None


def apply_rotary_pos_emb(
    t: Tensor,
    freqs: Tensor,
    tensor_format: str = "sbhd",
    start_positions: Tensor | None = None,
    interleaved: bool = False,
    fused: bool = False,
    cu_seqlens: Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> Tensor:
    """Turn queries or keys by their position."""
    if not fused:
        raise refusal("apply_rotary_pos_emb.fused", "rotary positions unfused", "True")
    out: Tensor = _Rope.apply(t, freqs, tensor_format, interleaved)
    return out


def apply_fused_qkv_rotary_pos_emb(
    qkv: Tensor,
    q_freqs: Tensor,
    k_freqs: Tensor,
    qkv_split_arg_list: Sequence[int],
    tensor_format: str = "sbhd",
    start_positions: Tensor | None = None,
    interleaved: bool = False,
    cu_seqlens: Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Take ``qkv`` apart and turn queries and keys."""
    query, key, value = _JoinedRope.apply(
        qkv, q_freqs, k_freqs, list(qkv_split_arg_list), tensor_format, interleaved
    )
    return query, key, value
