"""``te.pytorch.attention.rope``: rotary positions in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.gradients import differentiable
from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal


@differentiable
def _rope(
    tensor: Tensor, frequencies: Tensor, *form: Any
) -> tuple[Tensor, list[Tensor], Callable[..., Any]]:
    frequencies = frequencies.float()

    def gradient(frequencies: Tensor, grad: Tensor) -> Any:
        return kernel("rope_bwd")(grad, frequencies, *form)

    return kernel("rope_fwd")(tensor, frequencies, *form), [frequencies], gradient


@differentiable
def _joined_rope(
    qkv: Tensor, query_frequencies: Tensor, key_frequencies: Tensor, *form: Any
) -> tuple[tuple[Tensor, ...], list[Tensor], Callable[..., Any]]:
    """Takes the joined projection apart on the way."""
    frequencies = [query_frequencies.float(), key_frequencies.float()]

    def gradient(first: Tensor, second: Tensor, *grads: Tensor) -> Any:
        parts = [grad.contiguous() for grad in grads]
        return kernel("rope_qkv_bwd")(*parts, first, second, *form)

    return tuple(kernel("rope_qkv_fwd")(qkv, *frequencies, *form)), frequencies, gradient


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
    out: Tensor = _rope(t, freqs, tensor_format, interleaved)
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
    given = (q_freqs, k_freqs, list(qkv_split_arg_list), tensor_format, interleaved)
    query, key, value = _joined_rope(qkv, *given)
    return query, key, value
