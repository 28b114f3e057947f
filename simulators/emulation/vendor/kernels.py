"""The emulated kernels as operations of torch's dispatcher: shapes and types, nothing computed.

Each kernel of ``traces.vocabulary`` becomes ``torch.ops.emulated.<kernel>`` with a Meta
implementation, so that one call is one logged operation, with outputs as the real kernel makes
them. None is differentiable by itself: the autograd functions of this package call them in both
passes and save what the real ones save.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from simulators.traces.vocabulary import KERNELS, NAMESPACE

# Scales of MXFP8 blocks are padded to what tensor cores load at once: 128 rows by 4 blocks.
MX_BLOCK, _MX_ROWS, _MX_COLUMNS = 32, 128, 4
BLOCKWISE_BLOCK = 128
_GATED = {"geglu", "reglu", "swiglu", "qgeglu", "sreglu"}

_library = torch.library.Library(NAMESPACE, "DEF")
_defined = [_library.define(kernel.schema) for kernel in KERNELS.values()]


def kernel(name: str) -> Callable[..., Any]:
    """The dispatcher's callable of an emulated kernel; arguments positional, in schema order."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default  # type: ignore[no-any-return]


def torch_dtype(name: str) -> torch.dtype:
    """torch's type of a name such as ``bfloat16``."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """The name the schemas take, without the prefix."""
    return str(dtype).removeprefix("torch.")


def _meta(function: Callable[..., Any]) -> Callable[..., Any]:
    _library.impl(function.__name__.strip("_"), function, "Meta")
    return function


def _empty(like: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype or like.dtype, device=like.device)


def _rows(tensor: Tensor) -> int:
    return math.prod(tensor.shape[:-1])


def _product_shape(left: Tensor, right: Tensor, layout: str) -> tuple[int, ...]:
    if layout == "NT":
        return (left.shape[-1], right.shape[-1])
    return (*left.shape[:-1], right.shape[0] if layout == "TN" else right.shape[-1])


@_meta
def gemm(
    left: Tensor,
    right: Tensor,
    layout: str,
    use: str,
    out_dtype: str,
    bias: Tensor | None,
    recipe: str,
) -> Tensor:
    return _empty(left, _product_shape(left, right, layout), torch_dtype(out_dtype))


@_meta
def gemm_bias_grad(
    left: Tensor, right: Tensor, layout: str, use: str, out_dtype: str, recipe: str
) -> tuple[Tensor, Tensor]:
    shape = _product_shape(left, right, layout)
    dtype = torch_dtype(out_dtype)
    return _empty(left, shape, dtype), _empty(left, shape[:1], dtype)


@_meta
def gemm_into(
    left: Tensor,
    right: Tensor,
    out: Tensor,
    layout: str,
    use: str,
    accumulate: bool,
    recipe: str,
) -> None:
    return None


@_meta
def gemm_into_bias_grad(
    left: Tensor,
    right: Tensor,
    out: Tensor,
    layout: str,
    use: str,
    accumulate: bool,
    bias_dtype: str,
    recipe: str,
) -> Tensor:
    return _empty(left, out.shape[:1], torch_dtype(bias_dtype))


@_meta
def grouped_gemm(
    left: Sequence[Tensor],
    right: Sequence[Tensor],
    splits: Sequence[int],
    layout: str,
    use: str,
    out_dtype: str,
    one_kernel: bool,
    recipe: str,
) -> Tensor:
    width = right[0].shape[-2] if layout == "TN" else right[0].shape[-1]
    rows = sum(part.shape[0] for part in left)
    return _empty(left[0], (rows, width), torch_dtype(out_dtype))


@_meta
def grouped_gemm_into(
    left: Sequence[Tensor],
    right: Sequence[Tensor],
    out: Sequence[Tensor],
    splits: Sequence[int],
    layout: str,
    use: str,
    accumulate: bool,
    one_kernel: bool,
    recipe: str,
) -> None:
    return None


@_meta
def attention_fwd(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: str,
    mask: str,
    window: Sequence[int],
    dropout: float,
    scale: float,
    sequences: int,
    max_q: int,
    max_k: int,
    kernel: str,
) -> tuple[Tensor, Tensor, Tensor]:
    out = _empty(query, (*query.shape[:-1], value.shape[-1]))
    heads = query.shape[-2]
    stats = (heads, query.shape[0]) if layout == "thd" else (sequences, heads, max_q)
    return out, _empty(query, stats, torch.float32), _empty(query, (2,), torch.int64)


@_meta
def attention_bwd(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    softmax_stats: Tensor,
    grad_query: Tensor,
    grad_key: Tensor,
    grad_value: Tensor,
    layout: str,
    mask: str,
    window: Sequence[int],
    dropout: float,
    scale: float,
    sequences: int,
    max_q: int,
    max_k: int,
    kernel: str,
) -> None:
    return None


@_meta
def attention_merge_stats(stats: Tensor, step_stats: Tensor) -> None:
    return None


@_meta
def attention_merge_output(
    out: Tensor, step_out: Tensor, stats: Tensor, step_stats: Tensor
) -> None:
    return None


@_meta
def layer_norm_fwd(
    input: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows = (input.numel() // weight.numel(),)
    out = _empty(input, input.shape)
    return out, _empty(input, rows, torch.float32), _empty(input, rows, torch.float32)


@_meta
def layer_norm_bwd(
    grad_output: Tensor, input: Tensor, weight: Tensor, mean: Tensor | None, rsigma: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    grad_weight = _empty(weight, weight.shape), _empty(weight, weight.shape)
    return _empty(input, input.shape), *grad_weight


@_meta
def rms_norm_fwd(input: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows = (input.numel() // weight.numel(),)
    return _empty(input, input.shape), _empty(input, rows, torch.float32)


@_meta
def rms_norm_bwd(
    grad_output: Tensor, input: Tensor, weight: Tensor, rsigma: Tensor
) -> tuple[Tensor, Tensor]:
    return _empty(input, input.shape), _empty(weight, weight.shape)


@_meta
def layer_norm_quantize_fwd(
    input: Tensor, weight: Tensor, bias: Tensor | None, eps: float, recipe: str, dtype: str
) -> tuple[Tensor, Tensor, Tensor]:
    _, mean, rsigma = layer_norm_fwd(input, weight, bias, eps)
    return _empty(input, input.shape, torch_dtype(dtype)), mean, rsigma


@_meta
def rms_norm_quantize_fwd(
    input: Tensor, weight: Tensor, eps: float, recipe: str, dtype: str
) -> tuple[Tensor, Tensor]:
    _, rsigma = rms_norm_fwd(input, weight, eps)
    return _empty(input, input.shape, torch_dtype(dtype)), rsigma


@_meta
def fused_softmax_fwd(input: Tensor, mask: Tensor | None, scale: float, kind: str) -> Tensor:
    return _empty(input, input.shape)


@_meta
def fused_softmax_bwd(grad: Tensor, out: Tensor, scale: float, kind: str) -> None:
    return None


@_meta
def rope_fwd(input: Tensor, frequencies: Tensor, layout: str, interleaved: bool) -> Tensor:
    return _empty(input, input.shape)


@_meta
def rope_bwd(grad_output: Tensor, frequencies: Tensor, layout: str, interleaved: bool) -> Tensor:
    return _empty(grad_output, grad_output.shape)


@_meta
def rope_qkv_fwd(
    qkv: Tensor,
    query_frequencies: Tensor,
    key_frequencies: Tensor,
    split: Sequence[int],
    layout: str,
    interleaved: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    # Groups of query heads, a key head and a value head lie side by side; keys set the width.
    first, second, groups = qkv.shape[0], qkv.shape[1], qkv.shape[2]
    width = split[1]
    heads = (groups * split[0] // width, groups, groups)
    query, key, value = (_empty(qkv, (first, second, count, width)) for count in heads)
    return query, key, value


@_meta
def rope_qkv_bwd(
    grad_query: Tensor,
    grad_key: Tensor,
    grad_value: Tensor,
    query_frequencies: Tensor,
    key_frequencies: Tensor,
    split: Sequence[int],
    layout: str,
    interleaved: bool,
) -> Tensor:
    first, second, groups = grad_key.shape[:3]
    return _empty(grad_query, (first, second, groups, sum(split)))


@_meta
def activation_fwd(input: Tensor, function: str) -> Tensor:
    width = input.shape[-1] // (2 if function in _GATED else 1)
    return _empty(input, (*input.shape[:-1], width))


@_meta
def activation_bwd(grad_output: Tensor, input: Tensor, function: str) -> Tensor:
    return _empty(input, input.shape)


@_meta
def cross_entropy_stats(logits: Tensor, target: Tensor) -> Tensor:
    return _empty(logits, (3 * _rows(logits),), torch.float32)


@_meta
def cross_entropy_fwd(logits: Tensor, target: Tensor, stats: Tensor, reduce: bool) -> Tensor:
    return _empty(logits, () if reduce else logits.shape[:-1], torch.float32)


@_meta
def cross_entropy_bwd(grad_logits: Tensor, grad_output: Tensor) -> None:
    return None


def _padded(size: int, multiple: int) -> int:
    return math.ceil(size / multiple) * multiple


def _quantized(
    shape: Sequence[int],
    like: Tensor,
    recipe: str,
    dtype: str,
    rowwise: bool,
    columnwise: bool,
    square: bool = False,
) -> list[Tensor]:
    """Data and scales of the uses asked for, as each recipe lays them out."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    eight = torch_dtype(dtype)
    made: list[Tensor] = []
    if recipe == "mxfp8":
        scale = torch.uint8
        if rowwise:
            blocks = (_padded(rows, _MX_ROWS), _padded(columns // MX_BLOCK, _MX_COLUMNS))
            made += [_empty(like, shape, eight), _empty(like, blocks, scale)]
        if columnwise:
            blocks = (_padded(rows // MX_BLOCK, _MX_COLUMNS), _padded(columns, _MX_ROWS))
            made += [_empty(like, shape, eight), _empty(like, blocks, scale)]
        return made
    if recipe == "blockwise":
        if rowwise:
            made += [_empty(like, shape, eight), _block_scales(like, rows, columns, square)]
        if columnwise:
            data = _empty(like, (columns, rows), eight)
            made += [data, _block_scales(like, columns, rows, square)]
        return made
    if rowwise:
        made.append(_empty(like, shape, eight))
    if columnwise:
        made.append(_empty(like, (columns, rows), eight))
    return made


def _block_scales(like: Tensor, rows: int, columns: int, square: bool) -> Tensor:
    """fp32 scales of 1 x 128 blocks, kept column first, or of 128 x 128 ones (weights); the
    fast dimension is padded to four numbers."""
    across = math.ceil(columns / BLOCKWISE_BLOCK)
    if square:
        down = math.ceil(rows / BLOCKWISE_BLOCK)
        return _empty(like, (down, _padded(across, 4)), torch.float32)
    return _empty(like, (across, _padded(rows, 4)), torch.float32)


@_meta
def quantize(
    input: Tensor, recipe: str, dtype: str, rowwise: bool, columnwise: bool
) -> list[Tensor]:
    return _quantized(input.shape, input, recipe, dtype, rowwise, columnwise)


@_meta
def quantize_bias_grad(
    input: Tensor, recipe: str, dtype: str, rowwise: bool, columnwise: bool
) -> list[Tensor]:
    made = _quantized(input.shape, input, recipe, dtype, rowwise, columnwise)
    return [_empty(input, input.shape[-1:]), *made]


@_meta
def quantize_into(input: Tensor, out: Sequence[Tensor], recipe: str) -> None:
    return None


@_meta
def quantize_weight(input: Tensor, dtype: str, columnwise: bool) -> list[Tensor]:
    return _quantized(input.shape, input, "blockwise", dtype, True, columnwise, square=True)


@_meta
def grouped_quantize(
    input: Tensor,
    splits: Sequence[int],
    recipe: str,
    dtype: str,
    rowwise: bool,
    columnwise: bool,
) -> list[Tensor]:
    made: list[Tensor] = []
    for rows in splits:
        shape = (rows, input.shape[-1])
        made += _quantized(shape, input, recipe, dtype, rowwise, columnwise)
    return made


@_meta
def amax(input: Tensor) -> Tensor:
    return _empty(input, (1,), torch.float32)


@_meta
def scale_from_amax(amax: Tensor, dtype: str) -> Tensor:
    return _empty(amax, (1,), torch.float32)


@_meta
def fp8_transpose(input: Tensor) -> Tensor:
    return _empty(input, (input.shape[-1], _rows(input)))


@_meta
def swizzle_scales(scales: Tensor) -> Tensor:
    return _empty(scales, scales.shape)


@_meta
def update_amax_and_scale(
    reduced: Tensor, histories: Sequence[Tensor], scales: Sequence[Tensor]
) -> None:
    return None


@_meta
def dequantize(input: Tensor, recipe: str, out_dtype: str) -> Tensor:
    return _empty(input, input.shape, torch_dtype(out_dtype))


@_meta
def multi_tensor_adam(
    grads: Sequence[Tensor],
    params: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    masters: Sequence[Tensor],
) -> None:
    return None


@_meta
def multi_tensor_sgd(
    grads: Sequence[Tensor],
    params: Sequence[Tensor],
    momenta: Sequence[Tensor],
    copies: Sequence[Tensor],
) -> None:
    return None


@_meta
def multi_tensor_l2norm(tensors: Sequence[Tensor], per_tensor: bool) -> tuple[Tensor, Tensor]:
    each = (len(tensors) if per_tensor else 0,)
    return _empty(tensors[0], (1,), torch.float32), _empty(tensors[0], each, torch.float32)


@_meta
def multi_tensor_scale(inputs: Sequence[Tensor], outputs: Sequence[Tensor], scale: float) -> None:
    return None


@_meta
def moe_row_id_map(routing_map: Tensor) -> Tensor:
    tokens, experts = routing_map.shape
    return _empty(routing_map, (tokens, 2 * experts + 1), torch.int32)


@_meta
def pad_rows(rows: Tensor, out: Tensor) -> None:
    return None


@_meta
def moe_chunk_row_id_map(splits: Tensor, order: Tensor, rows: int) -> Tensor:
    return _empty(splits, (rows,), torch.int32)


@_meta
def moe_permute(
    tokens: Tensor, row_id_map: Tensor, probs: Tensor | None, rows: int
) -> list[Tensor]:
    made = [_empty(tokens, (rows, tokens.shape[-1]))]
    return made if probs is None else [*made, _empty(probs, (rows,))]


@_meta
def moe_unpermute(
    permuted: Tensor,
    row_id_map: Tensor,
    probs: Tensor | None,
    permuted_probs: Tensor | None,
    rows: int,
) -> list[Tensor]:
    made = [_empty(permuted, (rows, permuted.shape[-1]))]
    if permuted_probs is None:
        return made
    experts = (row_id_map.shape[-1] - 1) // 2
    return [*made, _empty(permuted_probs, (rows, experts))]


@_meta
def moe_unpermute_bwd(
    grad_output: Tensor, permuted: Tensor, row_id_map: Tensor, probs: Tensor
) -> tuple[Tensor, Tensor]:
    return _empty(permuted, permuted.shape), _empty(probs, probs.shape)


@_meta
def moe_sort_chunks(tokens: Tensor, row_id_map: Tensor, probs: Tensor | None) -> list[Tensor]:
    made = [_empty(tokens, tokens.shape)]
    return made if probs is None else [*made, _empty(probs, probs.shape)]


@_meta
def moe_router_fwd(
    logits: Tensor, expert_bias: Tensor | None, topk: int, score: str
) -> tuple[Tensor, Tensor, Tensor]:
    shape = logits.shape
    return _empty(logits, shape), _empty(logits, shape, torch.bool), _empty(logits, shape)


@_meta
def moe_router_bwd(
    grad_probs: Tensor, routing_map: Tensor, scores: Tensor, topk: int, score: str
) -> Tensor:
    return _empty(grad_probs, grad_probs.shape)


@_meta
def moe_aux_scores_fwd(logits: Tensor, topk: int, score: str) -> tuple[Tensor, Tensor, Tensor]:
    shape = logits.shape
    return _empty(logits, shape, torch.bool), _empty(logits, shape), _empty(logits, shape)


@_meta
def moe_aux_scores_bwd(grad_scores: Tensor, intermediate: Tensor, topk: int, score: str) -> Tensor:
    return _empty(grad_scores, grad_scores.shape)


@_meta
def moe_aux_loss_fwd(
    probs: Tensor,
    tokens_per_expert: Tensor,
    tokens: int,
    experts: int,
    topk: int,
    coefficient: float,
) -> tuple[Tensor, Tensor]:
    return _empty(probs, ()), _empty(probs, (), torch.float32)


@_meta
def moe_aux_loss_bwd(
    coefficient: Tensor, tokens_per_expert: Tensor, grad_loss: Tensor, rows: int
) -> Tensor:
    return _empty(grad_loss, (rows, tokens_per_expert.shape[0]))
