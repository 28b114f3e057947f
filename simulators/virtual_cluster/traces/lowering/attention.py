"""Fused attention as PyTorch offers it.

Its own flash kernels are FlashAttention-2; cuDNN's are the newest of the GPU's generation; the
memory-efficient ones (CUTLASS, from xFormers) run about as fast as the first FlashAttention
(Dao 2023, arXiv 2307.08691, figures 4 to 6).
"""

from __future__ import annotations

from collections.abc import Callable

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Attention
from trainscout.simulators.virtual_cluster.traces.events import Argument, Op, TensorSpec

from .tensors import FREE, Lowered, flag, keyword, precision, short_name, tensor

RULE = "attention"
FLASH, EFFICIENT, CUDNN = "flash2", "flash1", "flash"


def attention(
    name: str,
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    causal: bool,
    pass_: str,
    dtype: str,
    kernel: str,
    rule: str = RULE,
    estimated: bool = False,
    dropout: bool = False,
) -> Lowered:
    """From the shapes of queries, keys and values: sequences, heads, tokens, width."""
    (batch, heads, seq_q, width), (_, kv_heads, seq_k, _), (_, _, _, width_v) = shapes
    if not (batch and heads and kv_heads and seq_q and seq_k):
        return FREE
    made = Attention(
        name,
        batch,
        heads,
        kv_heads,
        seq_q,
        seq_k,
        width,
        width_v,
        causal,
        pass_,
        dtype,
        kernel,
        dropout=dropout,
    )
    return Lowered((made,), rule, estimated)


def masked(mask: str, window: Argument, seq_q: int, seq_k: int) -> tuple[bool, int]:
    """Whether half the scores are left out, and how many keys a token sees at most."""
    if isinstance(window, tuple) and len(window) == 2:
        left, right = window
        if isinstance(left, int) and isinstance(right, int) and 0 <= left < seq_k:
            behind = left + 1 + max(0, right)
            return False, min(seq_k, behind)
    if mask == "causal" and seq_q == seq_k:
        return True, seq_k
    if mask.startswith("causal") and seq_k > seq_q:
        # Aligned at the end: all earlier keys, and half of those of equal age.
        return False, seq_k - seq_q // 2 if mask == "causal_bottom_right" else max(1, seq_q // 2)
    return mask.startswith("causal"), seq_k


def scaled_dot_product(
    kernel: str, pass_: str, causal_at: int, dropout_at: int | None = None
) -> Callable[[Op], Lowered]:
    """A rule for operations on ``[sequences, heads, tokens, width]``; backward ones begin with the
    output's gradient. The share that is dropped comes before ``causal_at``, or is said."""
    first = 0 if pass_ == "fwd" else 1

    def rule(op: Op) -> Lowered:
        query, key, value = (tensor(op, first + each) for each in range(3))
        shapes = _four(op, query), _four(op, key), _four(op, value)
        causal = flag(op, causal_at)
        place = causal_at - 1 if dropout_at is None else dropout_at
        dropped = op.inputs[place] if place < len(op.inputs) else 0.0
        return attention(
            short_name(op),
            shapes,
            causal,
            pass_,
            precision(query),
            _activated(op, kernel),
            dropout=isinstance(dropped, float) and dropped > 0,
        )

    return rule


def packed(
    kernel: str, pass_: str, lengths_at: int, longest_at: int, causal_at: int, window_at: int = 0
) -> Callable[[Op], Lowered]:
    """A rule for operations on ``[sequences, tokens, heads, width]``, or without the first
    dimension on sequences one behind the other, whose bounds are the argument ``lengths_at``
    and of which the longest has ``longest_at`` tokens. How far each token sees is the argument
    ``window_at``, if that is given, or said by keyword."""
    first = 0 if pass_ == "fwd" else 1

    def rule(op: Op) -> Lowered:
        specs = [tensor(op, first + each) for each in range(3)]
        bounds = op.inputs[lengths_at] if lengths_at < len(op.inputs) else None
        made = []
        for each, spec in enumerate(specs):
            if len(spec.shape) == 4 and not isinstance(bounds, TensorSpec):
                sequences, tokens, heads, width = spec.shape
            else:
                if not isinstance(bounds, TensorSpec):
                    place = f"trace.op[{op.name}].inputs[{lengths_at}]"
                    raise InputError(place, bounds, "are no bounds of sequences", "a tensor")
                longest = op.inputs[longest_at + (each > 0)]
                heads, width = spec.shape[-2:]
                sequences = bounds.shape[0] - 1
                total = spec.shape[-3]
                # Sequences of unequal length cost what so many of the longest would, in tokens.
                tokens = int(longest) if isinstance(longest, int) else -(-total // sequences)
                sequences = max(1, round(total / max(1, tokens)))
            made.append((sequences, heads, tokens, width))
        causal_given = op.inputs[causal_at] if causal_at < len(op.inputs) else False
        causal = bool(causal_given) and not isinstance(causal_given, TensorSpec)
        window: Argument = (keyword(op, "window_size_left"), keyword(op, "window_size_right"))
        if window_at:
            window = op.inputs[window_at] if window_at < len(op.inputs) else None
        mask = "causal" if causal else "none"
        causal, seq_k = masked(mask, window, made[0][2], made[1][2])
        keys, values = ((each[0], each[1], seq_k, each[3]) for each in made[1:])
        shapes = (made[0], keys, values)
        name, dtype = short_name(op), precision(specs[0])
        return attention(name, shapes, causal, pass_, dtype, _activated(op, kernel))

    return rule


def _activated(op: Op, kernel: str) -> str:
    """FlashAttention-3 or -4, once a script put them in the place of torch's own."""
    return kernel if keyword(op, "implementation") is None else CUDNN


def flex(pass_: str) -> Callable[[Op], Lowered]:
    """A rule for FlexAttention: ``query, key, value, ..., block mask, ...``.

    A Triton kernel that comes near FlashAttention-2. Blocks that its mask leaves empty are not
    computed; where their share is not known, a mask other than the empty one is taken to be
    causal, which is an estimate.
    """

    def rule(op: Op) -> Lowered:
        query, key, value = (tensor(op, each) for each in range(3))
        masks = [each[-1] for each in op.inputs if isinstance(each, tuple) and _is_mask(each)]
        share = keyword(op, "computed_share")
        pieces, causal = 1, any("noop" not in str(mask) for mask in masks)
        if isinstance(share, float):
            # As many blocks, of short sequences one behind the other: each pass goes over all
            # queries or all keys in parallel, and each of them meets few of the others.
            pieces, causal = round(1 / max(share, 1e-9)), False
            pieces = max(1, min(pieces, query.shape[2], key.shape[2]))

        def cut(spec: TensorSpec) -> tuple[int, ...]:
            batch, heads, length, width = _four(op, spec)
            return batch * pieces, heads, -(-length // pieces), width

        shapes = cut(query), cut(key), cut(value)
        name, dtype = short_name(op), precision(query)
        return attention(name, shapes, causal, pass_, dtype, FLASH, estimated=share is None)

    return rule


def _is_mask(argument: tuple[Argument, ...]) -> bool:
    """Lengths of queries and keys first, the name of the mask's function last."""
    return len(argument) > 3 and isinstance(argument[0], int) and isinstance(argument[-1], str)


def _four(op: Op, spec: TensorSpec) -> tuple[int, ...]:
    if len(spec.shape) != 4:
        problem = "is no attention operand"
        raise InputError(f"trace.op[{op.name}].shape", spec.shape, problem, "four dimensions")
    return spec.shape


_SDP = "aten._scaled_dot_product"
TABLE = {
    f"{_SDP}_flash_attention": scaled_dot_product(FLASH, "fwd", 4),
    f"{_SDP}_flash_attention_backward": scaled_dot_product(FLASH, "bwd", 11),
    f"{_SDP}_flash_attention_for_cpu": scaled_dot_product(FLASH, "fwd", 4),
    f"{_SDP}_flash_attention_for_cpu_backward": scaled_dot_product(FLASH, "bwd", 7),
    f"{_SDP}_efficient_attention": scaled_dot_product(EFFICIENT, "fwd", 6),
    f"{_SDP}_efficient_attention_backward": scaled_dot_product(EFFICIENT, "bwd", 11, 9),
    f"{_SDP}_cudnn_attention": scaled_dot_product(CUDNN, "fwd", 6),
    f"{_SDP}_cudnn_attention_backward": scaled_dot_product(CUDNN, "bwd", 14),
    "aten._cudnn_attention_forward": scaled_dot_product(CUDNN, "fwd", 10),
    "aten._cudnn_attention_backward": scaled_dot_product(CUDNN, "bwd", 14),
    "aten.scaled_dot_product_attention": scaled_dot_product(FLASH, "fwd", 5),
    "higher_order.flex_attention": flex("fwd"),
    "higher_order.flex_attention_backward": flex("bwd"),
    "aten._flash_attention_forward": packed(FLASH, "fwd", 3, 5, 8),
    "aten._flash_attention_backward": packed(FLASH, "bwd", 6, 8, 11),
    "torch_attn._varlen_attn": packed(FLASH, "fwd", 3, 5, 7, 9),
    "torch_attn._varlen_attn_backward": packed(FLASH, "bwd", 6, 8, 10, 13),
    "aten._efficient_attention_forward": packed(EFFICIENT, "fwd", 4, 6, 9),
    "aten._efficient_attention_backward": packed(EFFICIENT, "bwd", 6, 8, 14),
}
