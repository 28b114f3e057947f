"""Context parallelism by gathering keys and values of all ranks (``all_gather``).

Each rank holds an early and a late chunk of the sequence; the two attend, on a stream each, to the
gathered tokens before them. Keys and values are gathered again in the backward pass, and their
gradients summed over ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.fused_attention import (
    AttentionForm,
    attention_backward,
    attention_forward,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.gradients import differentiable
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.collectives import (
    gather,
    start_reduce,
)


@differentiable
def gathered_keys(
    query: Tensor, key: Tensor, value: Tensor, form: AttentionForm, group: Any, stream: Any
) -> tuple[Tensor, list[Tensor], Callable[..., Any]]:
    """Keeps this rank's queries, keys and values, the output, and both log-sum-exps."""
    dimension = form.layout.index("s")
    wholes = _gathered(key, value, dimension, group)
    streams = [torch.cuda.current_stream(), stream]
    stream.wait_stream(streams[0])
    query = query.contiguous()
    out = torch.empty_like(query)
    stats: list[Tensor] = []
    for half in range(2):
        with torch.cuda.stream(streams[half]):
            part = _half(query, dimension, half)
            keys, values, step = _seen(wholes, form, dimension, group, half)
            made, each, _ = attention_forward(part, keys, values, step)
            stats.append(each)
            _half_view(out, dimension, half).copy_(made)
    streams[0].wait_stream(stream)

    def gradient(query: Tensor, key: Tensor, value: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        out, *stats, grad_output = given
        grad_output = grad_output.contiguous()
        wholes = _gathered(key, value, dimension, group)
        grad_query = torch.empty_like(query)
        grads = [torch.zeros_like(whole) for whole in wholes]
        streams = [torch.cuda.current_stream(), stream]
        stream.wait_stream(streams[0])
        added = torch.cuda.Event()
        for half in range(2):
            with torch.cuda.stream(streams[half]):
                part, out_part, grad_part = (
                    _half(each, dimension, half) for each in (query, out, grad_output)
                )
                keys, values, step = _seen(wholes, form, dimension, group, half)
                made = [torch.empty_like(each) for each in (part, keys, values)]
                attention_backward(
                    grad_part, part, keys, values, out_part, stats[half], made, step
                )
                _half_view(grad_query, dimension, half).copy_(made[0])
                if half:
                    streams[half].wait_event(added)
                for grad, piece in zip(grads, made[1:], strict=True):
                    tokens = piece.movedim(dimension, 0).contiguous()
                    grad[: tokens.shape[0]].add_(tokens)
                if not half:
                    streams[half].record_event(added)
        streams[0].wait_stream(stream)
        return grad_query, *(_own_sum(grad, dimension, group) for grad in grads)

    return out, [query, key, value, out, *stats], gradient


def _half_view(tensor: Tensor, dimension: int, half: int) -> Tensor:
    length = tensor.shape[dimension] // 2
    return tensor.narrow(dimension, half * length, length)


def _half(tensor: Tensor, dimension: int, half: int) -> Tensor:
    return _half_view(tensor, dimension, half).contiguous()


def _ordered(tokens: Tensor, group: Any) -> Tensor:
    """Chunks in the order of the sequence, or in that of the ranks."""
    pieces = 2 * dist.get_world_size(group)
    chunks = tokens.view(pieces, tokens.shape[0] // pieces, *tokens.shape[1:])
    order = torch.arange(pieces, device=tokens.device)
    return torch.index_select(chunks, 0, order).view(tokens.shape)


def _gathered(key: Tensor, value: Tensor, dimension: int, group: Any) -> list[Tensor]:
    """Keys and values of the whole sequence, tokens first."""
    first = [each.movedim(dimension, 0).contiguous() for each in (key, value)]
    wholes = [gather(each, group) for each in first]
    return [_ordered(whole, group) for whole in wholes if isinstance(whole, Tensor)]


def _seen(
    wholes: list[Tensor], form: AttentionForm, dimension: int, group: Any, half: int
) -> tuple[Tensor, Tensor, AttentionForm]:
    """Keys and values one of this rank's chunks attends to, and how."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    chunk = form.max_k // 2
    position = 2 * size - 1 - rank if half else rank
    causal = form.mask != "none"
    end = (position + 1) * chunk if causal else 2 * size * chunk
    keys, values = (whole[:end].movedim(0, dimension).contiguous() for whole in wholes)
    mask = "causal_bottom_right" if causal else "none"
    return keys, values, replace(form, mask=mask, max_q=form.max_q // 2, max_k=end)


def _own_sum(grad: Tensor, dimension: int, group: Any) -> Tensor:
    """Gradients summed over ranks, of this rank's tokens."""
    pending = start_reduce(_ordered(grad, group), group, True, asynchronous=False)
    tokens: Tensor = pending.wait()
    return tokens.movedim(0, dimension).contiguous()
