"""Attention over sequences whose tokens are shared out over ranks.

A ring (``p2p``): each rank keeps its queries and passes keys and values on, one step ahead of the
attention that uses them, on two streams in turn; what the steps found is merged by their
log-sum-exps. Causal sequences are cut into twice as many chunks as ranks, each rank holding an
early and a late one, so that every step is equally long. All-to-all (``a2a``): ranks exchange
tokens of all heads for all tokens of their heads, before and after.
"""

from __future__ import annotations

import os
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
from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal
from trainscout.simulators.virtual_cluster.emulation.vendor.transformer_engine.gathered_keys import (
    gathered_keys,
)


def context_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    form: AttentionForm,
    group: Any,
    ranks: Any,
    stream: Any,
    how: str,
) -> Tensor:
    """Attention of this rank's tokens to all tokens of their sequences."""
    if form.window[0] != -1:
        raise refusal("window_size", "sliding windows with context parallelism", "None")
    if how == "p2p":
        return _ring(query, key, value, form, group, ranks, stream)
    if how == "a2a":
        if form.layout == "thd":
            raise refusal("cp_comm_type", "a2a for packed sequences", "p2p")
        return _all_to_all(query, key, value, form, group, stream)
    if how == "all_gather" and form.layout != "thd":
        return gathered_keys(query, key, value, form, group, stream)
    raise refusal("cp_comm_type", f"context parallelism by {how}", "p2p, a2a, all_gather")


def _exchange(
    send: Tensor, receive: Tensor, rank: int, ranks: Any, group: Any, forward: bool
) -> list[Any]:
    """Pass on around the ring; even ranks send first, so that two neighbours meet."""
    size = len(ranks)
    step = 1 if forward else -1
    to, source = ranks[(rank + step) % size], ranks[(rank - step) % size]
    batched = os.environ.get("NVTE_BATCH_MHA_P2P_COMM", "0") == "1" or size == 2
    if batched:
        operations = [
            dist.P2POp(dist.isend, send, to, group),
            dist.P2POp(dist.irecv, receive, source, group),
        ]
        return list(dist.batch_isend_irecv(operations if rank % 2 == 0 else operations[::-1]))
    if rank % 2 == 0:
        sent = dist.isend(send, to, group)
        return [sent, dist.irecv(receive, source, group)]
    received = dist.irecv(receive, source, group)
    return [received, dist.isend(send, to, group)]


class _Parts:
    """Which tokens of queries and keys take part in a step."""

    def __init__(self, form: AttentionForm, rank: int) -> None:
        self.form, self.rank = form, rank
        self.causal = form.mask != "none"
        self.dimension = 0 if form.layout in ("sbhd", "thd") else 1

    def half(self, tensor: Tensor, second: bool) -> Tensor:
        """One half of the tokens of each sequence; packed ones are picked by a copy."""
        length = tensor.shape[self.dimension] // 2
        part = tensor.narrow(self.dimension, length if second else 0, length)
        return part.contiguous()

    def section(self, distance: int) -> str:
        """What the block of scores looks like with keys from ``distance`` ranks before."""
        if not self.causal:
            return "whole"
        if distance == 0:
            return "diagonal"
        return "early keys" if distance <= self.rank else "late queries"

    def of(
        self, section: str, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, AttentionForm]:
        """Queries, keys and values of a section, and how to attend."""
        form = self.form
        if section in ("whole", "diagonal"):
            return query, key, value, form
        plain = replace(form, mask="none", window=(-1, -1))
        if section == "early keys":
            return (
                query,
                self.half(key, False),
                self.half(value, False),
                replace(plain, max_k=form.max_k // 2),
            )
        return self.half(query, True), key, value, replace(plain, max_q=form.max_q // 2)


@differentiable
def _ring(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    form: AttentionForm,
    group: Any,
    ranks: Any,
    stream: Any,
) -> tuple[Tensor, list[Tensor], Callable[..., Any]]:
    """Keeps queries, the keys and values that came last (joined), output and log-sum-exps."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    parts = _Parts(form, rank)
    query = query.contiguous()
    shapes = key.shape, value.shape
    streams = [torch.cuda.current_stream(), stream]
    done = torch.cuda.Event()
    rings = [torch.cat((key.reshape(-1), value.reshape(-1)))]
    outs: list[Tensor] = []
    stats: list[Tensor] = []
    pending: list[list[Any]] = [[], []]
    total: Tensor | None = None
    for step in range(size + 1):
        if step < size:
            with torch.cuda.stream(streams[step % 2]):
                for request in pending[(step + 1) % 2]:
                    request.wait()
                if step < size - 1:
                    rings.append(torch.empty_like(rings[step]))
                    pending[step % 2] = _exchange(
                        rings[step], rings[step + 1], rank, ranks, group, True
                    )
                keys, values = _apart(rings[step], shapes)
                section = parts.of(parts.section(step), query, keys, values)
                out, each, _ = attention_forward(*section)
                outs.append(out)
                stats.append(each)
        if step > 0:
            before = step - 1
            if step > 1:
                streams[before % 2].wait_event(done)
            with torch.cuda.stream(streams[before % 2]):
                if total is None:
                    total = stats[0].clone()
                else:
                    kernel("attention_merge_stats")(total, stats[before])
            if step < size:
                streams[before % 2].record_event(done)
    streams[0].wait_stream(streams[1])
    assert total is not None
    merged = torch.empty_like(outs[0])
    for out, each in zip(outs, stats, strict=True):
        kernel("attention_merge_output")(merged, out, total, each)

    def gradient(
        query: Tensor, last: Tensor, out: Tensor, total: Tensor, grad_output: Tensor
    ) -> tuple[Tensor, ...]:
        grad_output = grad_output.contiguous()
        grad_query = torch.empty_like(query)
        # Keys and values in the first row, their gradients in the second.
        buffers = [
            torch.empty((2, *last.shape), dtype=last.dtype, device=last.device) for _ in range(2)
        ]
        buffers[0][0].copy_(last)
        requests: list[Any] = []
        for step in range(size):
            for request in requests:
                request.wait()
            send, receive = buffers[step % 2], buffers[(step + 1) % 2]
            if step == 0:
                send, receive = send[0], receive[0]
            if step == size - 1:
                send, receive = send[-1], receive[-1]
            requests = _exchange(send, receive, rank, ranks, group, False)
            keys, values = _apart(buffers[step % 2][0], shapes)
            section = parts.section(size - 1 - step)
            half, key, value, step_form = parts.of(section, query, keys, values)
            late = section == "late queries"
            outs = parts.half(out, True) if late else out
            gradient_part = parts.half(grad_output, True) if late else grad_output
            stats = total
            if late and form.layout != "thd":
                stats = total[..., total.shape[-1] // 2 :].contiguous()
            grads = tuple(torch.empty_like(each) for each in (half, key, value))
            attention_backward(gradient_part, half, key, value, outs, stats, grads, step_form)
            _add(grad_query, grads[0], step == 0, late, True, parts)
            for request in requests:
                request.wait()
            requests = []
            targets = _apart(buffers[(step + 1) % 2][1], shapes)
            early = section == "early keys"
            for target, grad in zip(targets, grads[1:], strict=True):
                _add(target, grad, step == 0, early, False, parts)
        return grad_query, *_apart(buffers[size % 2][1], shapes)

    return merged, [query, rings[-1], merged, total], gradient


def _apart(joined: Tensor, shapes: tuple[torch.Size, torch.Size]) -> tuple[Tensor, Tensor]:
    count = shapes[0].numel()
    return joined[:count].view(shapes[0]), joined[count:].view(shapes[1])


def _add(
    target: Tensor, made: Tensor, first: bool, is_half: bool, second: bool, parts: _Parts
) -> None:
    """Add one step's gradient, of all tokens or of one half, to those so far."""
    if is_half:
        length = target.shape[parts.dimension] // 2
        part = target.narrow(parts.dimension, length if second else 0, length)
        if first:
            target.narrow(parts.dimension, 0 if second else length, length).fill_(0)
    else:
        part = target
    made = made.view(part.shape)
    if first:
        part.copy_(made)
    else:
        part.add_(made)


@differentiable
def _all_to_all(
    query: Tensor, key: Tensor, value: Tensor, form: AttentionForm, group: Any, stream: Any
) -> tuple[Tensor, list[Tensor], Callable[..., Any]]:
    """Keeps queries, keys, values and the output of this rank's heads over all tokens."""
    given = (form.layout.index("s"), dist.get_world_size(group), group, stream)
    size = given[1]
    whole = replace(form, max_q=form.max_q * size, max_k=form.max_k * size)
    exchanged = _to_heads([query, key, value], *given)
    out, stats, random = attention_forward(exchanged[0], exchanged[1], exchanged[2], whole)

    def gradient(
        query: Tensor, key: Tensor, value: Tensor, out: Tensor, stats: Tensor, _: Any, grad: Tensor
    ) -> tuple[Tensor, ...]:
        (made,) = _to_heads([grad], *given)
        grads = [torch.empty_like(each) for each in (query, key, value)]
        attention_backward(made, query, key, value, out, stats, grads, whole)
        return tuple(_to_tokens(grads, *given))

    return _to_tokens([out], *given)[0], [*exchanged, out, stats, random], gradient


def _order(tensor: Tensor, size: int) -> Tensor:
    """Chunks of the sequence in the order ranks hold them, or back."""
    return torch.arange(2 * size, device=tensor.device)


def _to_heads(
    tensors: list[Tensor], dimension: int, size: int, group: Any, stream: Any
) -> list[Tensor]:
    """Exchange heads for tokens: one all-to-all each, put in order while the next runs."""
    order = _order(tensors[0], size)
    made: list[Tensor] = []
    received: list[Tensor] = []
    works: list[Any] = []
    for step in range(len(tensors) + 2):
        if 0 < step <= len(tensors):
            whole = torch.empty_like(made[step - 1])
            received.append(whole)
            works.append(dist.all_to_all_single(whole, made[step - 1], group=group, async_op=True))
        if step < len(tensors):
            tensor = tensors[step]
            shape = (*tensor.shape[:-2], size, tensor.shape[-2] // size, tensor.shape[-1])
            made.append(tensor.reshape(shape).movedim(-3, 0).contiguous())
        if step > 1:
            with torch.cuda.stream(stream):
                works[step - 2].wait()
                made[step - 2] = _joined(received[step - 2], dimension, size, order)
    torch.cuda.current_stream().wait_stream(stream)
    return made


def _joined(received: Tensor, dimension: int, size: int, order: Tensor) -> Tensor:
    """``[ranks, ...]`` to whole sequences, chunks put in order."""
    moved = received.movedim(0, dimension).contiguous()
    shape = moved.shape
    length = shape[dimension + 1] // 2
    chunks = moved.view(*shape[:dimension], 2 * size, length, *shape[dimension + 2 :])
    ordered = torch.index_select(chunks, dimension, order)
    return ordered.view(*shape[:dimension], 2 * size * length, *shape[dimension + 2 :])


def _to_tokens(
    tensors: list[Tensor], dimension: int, size: int, group: Any, stream: Any
) -> list[Tensor]:
    """The other way round."""
    order = _order(tensors[0], size)
    works: list[Any] = []
    received: list[Tensor] = []
    made: list[Tensor] = []
    for step in range(len(tensors) + 1):
        if step < len(tensors):
            tensor = tensors[step]
            shape = tensor.shape
            length = shape[dimension] // (2 * size)
            chunks = tensor.view(*shape[:dimension], 2 * size, length, *shape[dimension + 1 :])
            ordered = torch.index_select(chunks, dimension, order)
            parts = ordered.view(*shape[:dimension], size, 2 * length, *shape[dimension + 1 :])
            send = parts.movedim(dimension, 0).contiguous()
            received.append(torch.empty_like(send))
            works.append(dist.all_to_all_single(received[step], send, group=group, async_op=True))
        if step > 0:
            with torch.cuda.stream(stream):
                works[step - 1].wait()
                back = received[step - 1].movedim(0, -3).contiguous()
                heads = back.shape[-3] * back.shape[-2]
                made.append(back.view(*back.shape[:-3], heads, back.shape[-1]))
    torch.cuda.current_stream().wait_stream(stream)
    return made
