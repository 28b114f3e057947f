"""The emulated kernels as operations of torch's dispatcher: shapes and types, nothing computed.

Each kernel of ``traces.vocabulary`` becomes ``torch.ops.emulated.<kernel>`` with a Meta
implementation, so that one call is one logged operation, with outputs as the real kernel makes
them. None is differentiable by itself: the autograd functions of the vendor package call them in
both passes and save what the real ones save.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.traces.vocabulary import KERNELS, NAMESPACE

_GATED = ("geglu", "reglu", "swiglu", "qgeglu", "sreglu")
_library = torch.library.Library(NAMESPACE, "DEF")


def kernel(name: str) -> Callable[..., Any]:
    """The dispatcher's callable of an emulated kernel; arguments positional, in schema order."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default  # type: ignore[no-any-return]


def dtype_name(dtype: torch.dtype) -> str:
    """The name the schemas take, without the prefix."""
    return str(dtype).removeprefix("torch.")


def _empty(like: Tensor, shape: Sequence[int], dtype: str = "") -> Tensor:
    """A tensor of this shape, of the type of ``like`` unless said otherwise."""
    kind = getattr(torch, dtype) if dtype else like.dtype
    return torch.empty(tuple(shape), dtype=kind, device=like.device)


def _like(*places: int) -> Callable[..., Any]:
    """Outputs look like the arguments at these places."""

    def made(*args: Any) -> Any:
        outputs = tuple(_empty(args[place], args[place].shape) for place in places)
        return outputs if len(outputs) > 1 else outputs[0]

    return made


def _product(left: Tensor, right: Tensor, layout: str) -> tuple[int, ...]:
    if layout == "NT":
        return (left.shape[-1], right.shape[-1])
    return (*left.shape[:-1], right.shape[0] if layout == "TN" else right.shape[-1])


def _attended(q: Tensor, k: Tensor, v: Tensor, layout: str, *rest: Any) -> tuple[Tensor, ...]:
    """Output, log-sum-exp of each row, random state; ``rest`` from the mask on."""
    sequences, longest = rest[4:6]
    heads = q.shape[-2]
    rows = (heads, q.shape[0]) if layout == "thd" else (sequences, heads, longest)
    out = _empty(q, (*q.shape[:-1], v.shape[-1]))
    return out, _empty(q, rows, "float32"), _empty(q, (2,), "int64")


def _normed(statistics: int, *, quantised: bool) -> Callable[..., Any]:
    """The result, and so many numbers for each row."""

    def made(x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        rows = (x.numel() // weight.numel(),)
        out = _empty(x, x.shape, rest[-1] if quantised else "")
        return out, *(_empty(x, rows, "float32") for _ in range(statistics))

    return made


def _turned(qkv: Tensor, _: Any, __: Any, split: Sequence[int], *rest: Any) -> tuple[Tensor, ...]:
    # Groups of query heads, a key head and a value head lie side by side; keys set the width.
    groups, width = qkv.shape[2], split[1]
    heads = (groups * split[0] // width, groups, groups)
    return tuple(_empty(qkv, (*qkv.shape[:2], count, width)) for count in heads)


def _activated(x: Tensor, function: str) -> Tensor:
    return _empty(x, (*x.shape[:-1], x.shape[-1] // (2 if function in _GATED else 1)))


def _weighted(left: Tensor, right: Tensor, layout: str, _: str, dtype: str, recipe: str) -> Any:
    shape = _product(left, right, layout)
    return _empty(left, shape, dtype), _empty(left, shape[:1], dtype)


def _routed(logits: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(logits, logits.shape), _empty(logits, logits.shape, "bool"), _like(0)(logits)


def _scored(logits: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    probabilities, mask, scores = _routed(logits)
    return mask, probabilities, scores


# What each makes; the others only write their arguments.
_MADE: dict[str, Callable[..., Any]] = {
    "activation_bwd": _like(1),
    "activation_fwd": _activated,
    "amax": lambda x: _empty(x, (1,), "float32"),
    "attention_fwd": _attended,
    "expert_arrivals": lambda choices, rows, _: _empty(choices, (rows, choices.shape[1])),
    "expert_layout": lambda choices, experts, ranks: (
        _empty(choices, (ranks,), "int32"),
        _empty(choices, (experts,), "int32"),
        _empty(choices, (choices.shape[0], ranks), "bool"),
    ),
    "fp8_transpose": lambda x: _empty(x, (x.shape[-1], math.prod(x.shape[:-1]))),
    "fused_softmax_fwd": _like(0),
    "gemm": lambda left, right, layout, use, dtype, *_: _empty(
        left, _product(left, right, layout), dtype
    ),
    "gemm_bias_grad": _weighted,
    "gemm_into_bias_grad": lambda left, right, out, *rest: _empty(left, out.shape[:1], rest[3]),
    "layer_norm_bwd": _like(1, 2, 2),
    "layer_norm_fwd": _normed(2, quantised=False),
    "layer_norm_quantize_fwd": _normed(2, quantised=True),
    "moe_aux_loss_bwd": lambda _, counts, grad, rows: _empty(grad, (rows, counts.shape[0])),
    "moe_aux_loss_fwd": lambda probs, *_: (_empty(probs, ()), _empty(probs, (), "float32")),
    "moe_aux_scores_bwd": _like(0),
    "moe_aux_scores_fwd": _scored,
    "moe_router_bwd": _like(0),
    "moe_router_fwd": _routed,
    "multi_tensor_l2norm": lambda tensors, each: tuple(
        _empty(tensors[0], (count,), "float32") for count in (1, len(tensors) if each else 0)
    ),
    "quantize_into_bias_grad": lambda x, *_: _empty(x, x.shape[-1:]),
    "rms_norm_bwd": _like(1, 2),
    "rms_norm_fwd": _normed(1, quantised=False),
    "rms_norm_quantize_fwd": _normed(1, quantised=True),
    "rope_bwd": _like(0),
    "rope_fwd": _like(0),
    "rope_qkv_bwd": lambda q, k, v, _, __, split, *rest: _empty(q, (*k.shape[:3], sum(split))),
    "rope_qkv_fwd": _turned,
    "scale_from_amax": lambda amax, dtype: _empty(amax, (1,), "float32"),
    "swizzle_scales": _like(0),
}
for _kernel in KERNELS.values():
    _library.define(_kernel.schema)
    _library.impl(_kernel.name, _MADE.get(_kernel.name, lambda *_: None), "Meta")
