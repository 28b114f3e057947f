"""flash-attn's functions below autograd, which attention over rings of ranks calls."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.extension import flash_attn_2

# As the compiled functions take them, after those that are only there for packed sequences.
_REST = ("dropout_p", "softmax_scale", "causal", "window_size_left", "window_size_right")
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


def _arguments(query: Tensor, packed: bool, given: Any, options: dict[str, Any]) -> list[Any]:
    """The options, by position or name, as the compiled functions take them."""
    names = (*_LENGTHS, *_REST) if packed else _REST
    found = {**options, **dict(zip(names, given, strict=False))}
    window = found.get("window_size", (-1, -1))
    rest = [
        float(found.get("dropout_p", 0.0)),
        found.get("softmax_scale") or 1.0 / math.sqrt(query.shape[-1]),
        bool(found.get("causal")),
        int(found.get("window_size_left", window[0])),
        int(found.get("window_size_right", window[1])),
    ]
    if not packed:
        return rest
    # Behind the scale, whether outputs are zeroed first.
    return [*(found[name] for name in _LENGTHS), *rest[:2], False, *rest[2:]]


def _flash_attn_forward(q: Tensor, k: Tensor, v: Tensor, *given: Any, **options: Any) -> Any:
    """Output, log-sum-exps, no probabilities, the random state."""
    out, stats, _, random = flash_attn_2.fwd(q, k, v, *_arguments(q, False, given, options))
    return out, stats, None, random


def _flash_attn_varlen_forward(
    q: Tensor, k: Tensor, v: Tensor, *given: Any, **options: Any
) -> Any:
    """As ``_flash_attn_forward``, of packed sequences."""
    out, stats, _, random = flash_attn_2.varlen_fwd(q, k, v, *_arguments(q, True, given, options))
    return out, stats, None, random


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    *given: Any,
    **options: Any,
) -> Tensor:
    """Gradients into ``dq``, ``dk``, ``dv``; the sums of rows."""
    tensors = (q, k, v, out, softmax_lse, dq, dk, dv)
    rest = _arguments(q, False, given, options)
    stats: Tensor = flash_attn_2.bwd(dout.contiguous(), *tensors, *rest)[-1]
    return stats


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    *given: Any,
    **options: Any,
) -> Tensor:
    """As ``_flash_attn_backward``, of packed sequences."""
    tensors = (q, k, v, out, softmax_lse, dq, dk, dv)
    rest = _arguments(q, True, given, options)
    stats: Tensor = flash_attn_2.varlen_bwd(dout.contiguous(), *tensors, *rest)[-1]
    return stats
