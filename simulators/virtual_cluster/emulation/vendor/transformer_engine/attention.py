"""``te.pytorch.DotProductAttention`` and the split of a joined projection."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from trainscout.simulators.virtual_cluster.emulation.vendor.fused_attention import (
    AttentionForm,
    are_interleaved,
    fused_attention,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.gradients import differentiable
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.context_parallel import (
    context_parallel_attention,
)

_MASKS = {
    "no_mask": "none",
    "causal": "causal",
    "padding": "none",
    "padding_causal": "causal",
    "causal_bottom_right": "causal_bottom_right",
    "padding_causal_bottom_right": "causal_bottom_right",
}


def _split_along_dim(
    tensor: Tensor, dimension: int, sizes: Any
) -> tuple[tuple[Tensor, ...], list[Tensor], Callable[..., Any]]:
    """Views of a tensor; gradients that are such views themselves are not copied."""
    count = tensor.dim() - 1

    def gradient(*grads: Tensor) -> Tensor:
        if dimension in (-1, count) and len(grads) == 3 and are_interleaved(*grads):
            first = grads[0]
            shape = (*first.shape[:-1], 3 * first.shape[-1])
            return first.as_strided(shape, first.stride(), first.storage_offset())
        return torch.cat(grads, dim=dimension)

    return tuple(torch.split(tensor, sizes, dim=dimension)), [], gradient


SplitAlongDim = differentiable(_split_along_dim)


def choose_kernel() -> str:
    """cuDNN's on Hopper and later, FlashAttention-2 before, as far as allowed and installed."""
    flash = os.environ.get("NVTE_FLASH_ATTN", "1") == "1"
    fused = os.environ.get("NVTE_FUSED_ATTN", "1") == "1"
    flash = flash and importlib.util.find_spec("flash_attn") is not None
    if fused and (torch.cuda.get_device_capability() >= (9, 0) or not flash):
        return "cudnn"
    if flash:
        return "flash2"
    raise refusal("attention_backend", "attention that is not fused", "flash or fused")


class DotProductAttention(nn.Module):
    """``te.pytorch.DotProductAttention`` in 16 bits, without biases or arbitrary masks."""

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        tp_group: Any = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: Any = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        return_max_logit: bool = False,
    ) -> None:
        super().__init__()
        if softmax_type != "vanilla":
            raise refusal("softmax_type", "softmax with an offset", "vanilla")
        if return_max_logit:
            raise refusal("return_max_logit", "the largest logit handed out", "False")
        self.qkv_format = qkv_format
        self.attn_mask_type = attn_mask_type
        self.window_size = tuple(window_size) if window_size is not None else None
        self.attention_dropout = attention_dropout
        widths = (kv_channels, kv_channels) if isinstance(kv_channels, int) else kv_channels
        self.hidden_size_per_attention_head_k, self.hidden_size_per_attention_head_v = widths
        self.softmax_scale = softmax_scale or 1.0 / math.sqrt(widths[0])
        self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)

    def set_context_parallel_group(
        self,
        cp_group: Any,
        cp_global_ranks: Any,
        cp_stream: Any,
        cp_comm_type: str = "p2p",
    ) -> None:
        """Ranks that hold other parts of the sequences, and how to exchange with them."""
        self.cp_group, self.cp_global_ranks = cp_group, cp_global_ranks
        self.cp_stream, self.cp_comm_type = cp_stream, cp_comm_type

    def forward(
        self,
        query_layer: Tensor,
        key_layer: Tensor,
        value_layer: Tensor,
        attention_mask: Any = None,
        qkv_format: str | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        """Attention over this rank's heads, ``[..., heads * width]``."""
        if core_attention_bias_type != "no_bias" or core_attention_bias is not None:
            raise refusal("core_attention_bias", "attention with a bias", "no_bias")
        query_layer, key_layer, value_layer = _in_known_layout(query_layer, key_layer, value_layer)
        layout = qkv_format or self.qkv_format
        mask_type = attn_mask_type or self.attn_mask_type
        if mask_type not in _MASKS:
            raise refusal(
                "attn_mask_type", f"attention with mask {mask_type!r}", ", ".join(_MASKS)
            )
        form = self._form(
            query_layer,
            key_layer,
            layout,
            mask_type,
            window_size,
            cu_seqlens_q,
            max_seqlen_q,
            max_seqlen_kv,
        )
        if "padding" in mask_type and layout != "thd" and attention_mask is not None:
            _lengths(attention_mask)
        if self.cp_group is not None and _group_size(self.cp_group) > 1:
            out = context_parallel_attention(
                query_layer,
                key_layer,
                value_layer,
                form,
                self.cp_group,
                self.cp_global_ranks,
                self.cp_stream,
                self.cp_comm_type,
            )
        elif form.kernel == "flash2" and layout == "sbhd":
            out = _batch_first(query_layer, key_layer, value_layer, form)
        else:
            out = fused_attention(query_layer, key_layer, value_layer, form)
        return out.reshape(*out.shape[:-2], -1)

    def _form(
        self,
        query: Tensor,
        key: Tensor,
        layout: str,
        mask_type: str,
        window_size: tuple[int, int] | None,
        cu_seqlens: Tensor | None,
        max_q: int | None,
        max_k: int | None,
    ) -> AttentionForm:
        mask = _MASKS[mask_type]
        window = window_size or self.window_size or (-1, 0 if mask != "none" else -1)
        if layout == "thd":
            assert cu_seqlens is not None
            sequences = cu_seqlens.shape[0] - 1
            longest = int(max_q or query.shape[0]), int(max_k or key.shape[0])
        else:
            dimension = layout.index("s")
            sequences = query.shape[1 - dimension]
            longest = query.shape[dimension], key.shape[dimension]
        return AttentionForm(
            layout,
            mask,
            (window[0], window[1]),
            self.attention_dropout if self.training else 0.0,
            self.softmax_scale,
            sequences,
            *longest,
            choose_kernel(),
        )


def _in_known_layout(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Copies of all three where keys and values are not laid out alike (``get_qkv_layout``): of a
    packed projection whose keys were rotated, values are a slice and keys are not."""
    if key.stride()[:-1] == value.stride()[:-1] or key.shape != value.shape:
        return query, key, value
    return query.contiguous(), key.contiguous(), value.contiguous()


def _group_size(group: Any) -> int:
    if isinstance(group, list):
        raise refusal("cp_comm_type", "context parallelism on two levels", "p2p, a2a, all_gather")
    return int(torch.distributed.get_world_size(group))


def _batch_first(query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
    """FlashAttention-2 takes batches first: what is not, is copied."""
    turned = [each.transpose(0, 1).contiguous() for each in (query, key, value)]
    out: Tensor = fused_attention(*turned, replace(form, layout="bshd"))
    return out.transpose(0, 1).contiguous()


def _lengths(mask: Any) -> None:
    """Sequence lengths from a padding mask: small kernels before attention."""
    for each in mask if isinstance(mask, tuple) else (mask,):
        lengths = torch.logical_not(each[:, 0, 0, :]).sum(dim=1, dtype=torch.int32)
        torch.cumsum(lengths, dim=0)
