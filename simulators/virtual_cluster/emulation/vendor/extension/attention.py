"""Fused attention, rotary positions, and what context parallelism does between its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.fused_attention import (
    AttentionForm,
    attention_backward,
    attention_forward,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.opaque import launch

from .enumerations import (
    DType,
    NVTE_Fused_Attn_Backend,
    NVTE_Mask_Type,
    NVTE_QKV_Format,
    NVTE_QKV_Layout,
    NVTE_Softmax_Type,
)
from .quantized import make, plain, recipe_of

_EIGHT_BITS = (DType.kFloat8E4M3, DType.kFloat8E5M2)


def get_fused_attn_backend(
    is_training: bool, q_dtype: Any, kv_dtype: Any, *rest: Any, **options: Any
) -> Any:
    """cuDNN's kernel for the type; none before compute capability 8.0 (8 bits: 9.0)."""
    first = 9 if q_dtype in _EIGHT_BITS else 8
    if q_dtype == DType.kFloat32 or torch.cuda.get_device_capability() < (first, 0):
        return NVTE_Fused_Attn_Backend.NVTE_No_Backend
    if q_dtype in _EIGHT_BITS:
        return NVTE_Fused_Attn_Backend.NVTE_FP8
    return NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen


def _one(arguments: Sequence[Any], kind: type) -> Any:
    return next(each for each in arguments if isinstance(each, kind))


def _form(
    arguments: Sequence[Any], lengths: tuple[int, int], scale: float, dropout: float
) -> tuple[AttentionForm, int]:
    """How attention is called, and where the sequence offsets stand among the arguments, which
    versions of the library have in the same order but not in the same places."""
    parts = _one(arguments, NVTE_QKV_Layout).name.removeprefix("NVTE_").split("_")
    parts = [part for part in parts if part not in ("Paged", "KV")]
    mask = _one(arguments, NVTE_Mask_Type).name
    name = "none"
    if "CAUSAL" in mask:
        name = "causal_bottom_right" if "BOTTOM_RIGHT" in mask else "causal"
    left, right = _one(arguments, (list, tuple))  # type: ignore[arg-type]
    offsets = next(at for at, each in enumerate(arguments) if isinstance(each, Tensor))
    form = AttentionForm(
        parts[0].translate({ord("2"): None, ord("3"): None}).lower(),
        name,
        (int(left), int(right)),
        dropout,
        scale,
        arguments[offsets].shape[0] - 1,
        *lengths,
        "cudnn",
    )
    return form, offsets


def fused_attn_fwd(
    max_seqlen_q: int,
    max_seqlen_kv: int,
    is_training: bool,
    attn_scale: float,
    p_dropout: float,
    *rest: Any,
) -> list[Any]:
    """The output, log-sum-exps, random state."""
    form, offsets = _form(rest, (int(max_seqlen_q), int(max_seqlen_kv)), attn_scale, p_dropout)
    query, key, value = rest[offsets + 2 : offsets + 5]
    quantizers = [each for each in rest[offsets + 5 :] if recipe_of(each)]
    out, stats, random = attention_forward(plain(query), plain(key), plain(value), form)
    if form.layout == "thd":
        stats = stats.view(stats.shape[1], stats.shape[0])
    made = out
    if len(quantizers) == 2:
        made = make(quantizers[1], out.shape, torch.bfloat16)
    elif hasattr(query, "get_metadata"):
        made = torch.empty(out.shape, dtype=_one(rest, torch.dtype), device="cuda")
    aux = [stats.unsqueeze(-1)]
    if quantizers:
        aux.append(torch.empty_like(aux[0]))
    return [made, *aux, random]


def fused_attn_bwd(
    max_seqlen_q: int, max_seqlen_kv: int, attn_scale: float, p_dropout: float, *rest: Any
) -> list[Any]:
    """Gradients of queries, keys and values, laid out as those are; no others."""
    form, offsets = _form(rest, (int(max_seqlen_q), int(max_seqlen_kv)), attn_scale, p_dropout)
    operands = rest[offsets + 2 : offsets + 7]
    query, key, value, out, grad_out = (plain(each) for each in operands)
    kept = next(each for each in rest[offsets + 7 :] if isinstance(each, list))
    quantizers = [each for each in rest[offsets + 7 :] if recipe_of(each)]
    shapes = (query, key, value)
    layout = _one(rest, NVTE_QKV_Layout).name.removeprefix("NVTE_").lower()
    if len(quantizers) == 3:
        grads = [make(quantizers[-1], each.shape, torch.bfloat16) for each in shapes]
    else:
        dtype = out.dtype if out.element_size() > 1 else _one(rest, torch.dtype)
        grads = _gradients(layout, shapes, dtype)
    targets = (plain(grads[0]), plain(grads[1]), plain(grads[2]))
    attention_backward(grad_out.contiguous(), query, key, value, out, kept[0], targets, form)
    offset = any(isinstance(each, NVTE_Softmax_Type) for each in rest)
    return [*grads, None, *([None] if offset else [])]


def _gradients(layout: str, like: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Slices of one tensor where the inputs are: ``sb3hd`` beside, ``sbh3d`` inside of heads."""
    joined = layout.rpartition("_")[2]
    count = next((int(mark) for mark in joined if mark in "23"), 1)
    apart = [torch.empty(each.shape, dtype=dtype, device="cuda") for each in like[: 3 - count]]
    if count == 1:
        return [torch.empty(each.shape, dtype=dtype, device="cuda") for each in like]
    *outer, heads, width = like[-1].shape
    if joined.endswith("hd"):
        whole = torch.empty((*outer, count, heads, width), dtype=dtype, device="cuda")
        return [*apart, *whole.unbind(-3)]
    whole = torch.empty((*outer, heads, count, width), dtype=dtype, device="cuda")
    return [*apart, *whole.unbind(-2)]


def fa_prepare_fwd(qkvi: Tensor) -> Tensor:
    """``[s, b, h, 3 d]`` as ``[3, b, s, h, d]``."""
    tokens, batch, heads, width = qkvi.shape
    return _rearranged(qkvi, (3, batch, tokens, heads, width // 3))


def fa_prepare_bwd(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Three ``[b, s, h, d]`` as ``[s, b, h, 3 d]``."""
    batch, tokens, heads, width = q.shape
    return _rearranged(q, (tokens, batch, heads, 3 * width), k, v)


def _rearranged(tensor: Tensor, shape: Sequence[int], *others: Tensor) -> Tensor:
    """A kernel that copies to other places; read once, written once."""
    out = torch.empty(tuple(shape), dtype=tensor.dtype, device="cuda")
    launch("rearrange", [out], [tensor, *others])
    return out


def convert_thd_to_bshd(tensor: Tensor, cu_seqlens: Tensor, b: int, max_seq_len: int) -> Tensor:
    """Packed sequences, padded."""
    return _rearranged(tensor, (b, max_seq_len, *tensor.shape[1:]))


def convert_bshd_to_thd(tensor: Tensor, cu_seqlens: Tensor, t: int) -> Tensor:
    """Padded sequences, packed."""
    return _rearranged(tensor, (t, *tensor.shape[2:]))


def thd_read_half_tensor(tensor: Tensor, cu_seqlens: Tensor, half_idx: int) -> Tensor:
    """One half of each packed sequence, of ``[t, ...]`` or ``[2, t, ...]``."""
    shape = list(tensor.shape)
    shape[0 if tensor.dim() == 3 else 1] //= 2
    return _rearranged(tensor, shape)


def thd_read_second_half_lse(
    lse: Tensor, cu_seqlens: Tensor, lse_packed: bool, second_half_lse_seqlen: int
) -> Tensor:
    """The second halves' log-sum-exps."""
    return _rearranged(lse, (*lse.shape[:-1], second_half_lse_seqlen))


def thd_second_half_lse_correction(lse: Tensor, lse_per_step: Tensor, *rest: Any) -> None:
    """Log-sum-exps over the steps so far."""
    kernel("attention_merge_stats")(lse, lse_per_step)


def thd_out_correction(
    out: Tensor, out_per_step: Tensor, lse: Tensor, lse_per_step: Tensor, *rest: Any
) -> None:
    """One step's output, rescaled and added."""
    kernel("attention_merge_output")(out, out_per_step, lse, lse_per_step)


def thd_grad_correction(grad: Tensor, grad_per_step: Tensor, *rest: Any) -> None:
    """One step's gradient, copied or added."""
    launch("thd_grad_correction", [grad], [grad_per_step])


def thd_get_partitioned_indices(
    cu_seqlens: Tensor, total_tokens: int, world_size: int, rank: int
) -> Tensor:
    """Which tokens this rank holds."""
    out = torch.empty(total_tokens // world_size, dtype=torch.int32, device="cuda")
    launch("thd_get_partitioned_indices", [out], [cu_seqlens])
    return out


def _rope(arguments: Sequence[Any]) -> tuple[str, bool]:
    """The layout, and whether pairs lie beside each other."""
    formats = [each for each in arguments if isinstance(each, NVTE_QKV_Format)]
    layout = formats[0].name.removeprefix("NVTE_").lower() if formats else "sbhd"
    return layout, bool(formats and _one(arguments, bool))


def fused_rope_forward(input: Tensor, freqs: Tensor, *rest: Any) -> Tensor:
    return kernel("rope_fwd")(input, freqs, *_rope(rest))


def fused_rope_backward(output_grads: Tensor, freqs: Tensor, *rest: Any) -> Tensor:
    return kernel("rope_bwd")(output_grads, freqs, *_rope(rest))


def _split(arguments: Sequence[Any]) -> list[int]:
    return [int(each) for each in _one(arguments, (list, tuple))]  # type: ignore[arg-type]


def fused_qkv_rope_forward(
    qkv_input: Tensor, q_freqs: Tensor, k_freqs: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    """The parts of a joined projection, queries and keys turned."""
    made = kernel("rope_qkv_fwd")(qkv_input, q_freqs, k_freqs, _split(rest), *_rope(rest))
    return tuple(made)


def fused_qkv_rope_backward(
    q_grad_out: Tensor,
    k_grad_out: Tensor,
    v_grad_out: Tensor,
    q_freqs: Tensor,
    k_freqs: Tensor,
    *rest: Any,
) -> Tensor:
    """The gradient of the joined projection."""
    grads = (q_grad_out, k_grad_out, v_grad_out)
    return kernel("rope_qkv_bwd")(*grads, q_freqs, k_freqs, _split(rest), *_rope(rest))
