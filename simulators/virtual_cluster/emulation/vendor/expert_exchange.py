"""DeepEP: tokens to the ranks of their experts and back, each once to a rank.

What its kernels move is an exchange of rows among the group, as NCCL's are written down; tokens'
choices and weights travel in the same messages and are not counted. How many arrive follows from
the router's choices, and every rank is taken to send as many as this one. Its buffers lie outside
PyTorch's allocator and are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .kernels import kernel

# Ranks that see each other's memory, and what the library takes a token to have of experts and
# scales at most (csrc/config.hpp, get_nvl_buffer_size_hint).
_NEAR = 8
_MOST_OF_A_TOKEN = 128 * (8 + 4 + 4)


class EventHandle:
    """An event recorded on the current stream."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event()
        self._event.record()

    def current_stream_wait(self) -> None:
        """As of now, the current stream goes on after it."""
        torch.cuda.current_stream().wait_event(self._event)


class EventOverlap:
    """What a call leaves to be waited for; as a context, waited for at its end."""

    def __init__(self, event: Any = None, extra_tensors: Any = None) -> None:
        self.event, self.extra_tensors = event, extra_tensors

    def current_stream_wait(self) -> None:
        """As of now, the current stream goes on after it."""
        self.event.current_stream_wait()

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *raised: Any) -> None:
        if self.event is not None:
            self.event.current_stream_wait()


@dataclass(frozen=True)
class Config:
    """Of the kernels: their SMs, and tokens that a buffer takes at a time."""

    num_sms: int
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 128

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of the buffer that near ranks write."""
        tokens = self.num_sms // 2 * min(num_ranks, _NEAR) * self.num_max_nvl_chunked_recv_tokens
        return _whole(tokens * (hidden_bytes + _MOST_OF_A_TOKEN))

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of the buffers for ranks of other nodes."""
        if num_ranks <= _NEAR:
            return 0
        ranks = num_ranks // _NEAR
        tokens = self.num_sms // 2 * ranks * self.num_max_rdma_chunked_recv_tokens
        return _whole(2 * tokens * (hidden_bytes + _MOST_OF_A_TOKEN))


def _whole(size: int) -> int:
    return -(-size // 128) * 128


@dataclass(frozen=True)
class _Handle:
    """How tokens went, for their way back and for gradients: rows to and from each rank."""

    sent: Sequence[int]
    received: Sequence[int]
    tokens: int


class Buffer:
    """What a group exchanges tokens through."""

    num_sms = 20

    def __init__(
        self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0, *rest: Any, **named: Any
    ) -> None:
        if rest[:1] == (True,) or named.get("low_latency_mode"):
            raise NotImplementedError("DeepEP's low-latency mode")
        self.group, self.rank, self.group_size = group, group.rank(), group.size()
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Of all kernels from now on."""
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """An event of the current stream."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """What it recommends."""
        return Config(Buffer.num_sms)

    get_combine_config = get_dispatch_config

    def get_dispatch_layout(
        self,
        topk_idx: Tensor,
        num_experts: int,
        previous_event: Any = None,
        *rest: Any,
        **named: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor, EventOverlap]:
        """How many tokens go to each rank and to each expert, and which to which rank."""
        per_rank, per_expert, goes = kernel("expert_layout")(
            topk_idx, num_experts, self.group_size
        )
        nodes = self.group_size // _NEAR
        per_node = torch.empty(nodes, dtype=torch.int32, device="cuda") if nodes > 1 else None
        return per_rank, per_node, per_expert, goes, self.capture()

    def dispatch(
        self,
        x: Any,
        handle: _Handle | None = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        expert_alignment: int = 1,
        *rest: Any,
        **named: Any,
    ) -> tuple[Any, ...]:
        """Tokens to ranks: those received, their experts here (-1: elsewhere), their weights, how
        many each expert here has, the handle, an event. The host waits for the numbers, unless a
        handle says them; then there are tokens only."""
        parts = x if isinstance(x, tuple) else (x,)
        if handle is not None:
            moved = tuple(self._forth(part, handle) for part in parts)
            return (
                moved if isinstance(x, tuple) else moved[0],
                None,
                None,
                None,
                None,
                self.capture(),
            )
        assert num_tokens_per_rank is not None
        assert num_tokens_per_expert is not None
        sent = [int(count) for count in num_tokens_per_rank.tolist()]
        per_expert = [int(count) for count in num_tokens_per_expert.tolist()]
        handle = _Handle(sent, [sent[self.rank]] * self.group_size, parts[0].shape[0])
        held = len(per_expert) // self.group_size
        first = self.rank * held
        arrived = [count * self.group_size for count in per_expert[first : first + held]]
        aligned = [-(-count // expert_alignment) * expert_alignment for count in arrived]
        moved = tuple(self._forth(part, handle) for part in parts)
        choices = weights = None
        if topk_idx is not None:
            rows = sum(handle.received)
            choices = kernel("expert_arrivals")(topk_idx, rows, arrived)
            if topk_weights is not None:
                weights = topk_weights.new_empty((rows, topk_weights.shape[1]))
        made = moved if isinstance(x, tuple) else moved[0]
        return made, choices, weights, aligned, handle, self.capture()

    def combine(
        self,
        x: Tensor,
        handle: _Handle,
        topk_weights: Tensor | None = None,
        *rest: Any,
        **named: Any,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:
        """What ranks made of a token, summed where it came from, and gradients of its weights."""
        out = x.new_empty((handle.tokens, x.shape[1]))
        self._exchange(_rows(out, handle.sent), x, handle.sent, handle.received)
        weights = None
        if topk_weights is not None:
            weights = topk_weights.new_empty((handle.tokens, topk_weights.shape[1]))
        return out, weights, self.capture()

    def _forth(self, x: Tensor, handle: _Handle) -> Tensor:
        out = x.new_empty((sum(handle.received), *x.shape[1:]))
        self._exchange(out, _rows(x, handle.sent), handle.received, handle.sent)
        return out

    def _exchange(
        self, out: Tensor, read: Tensor, received: Sequence[int], sent: Sequence[int]
    ) -> None:
        torch.distributed.all_to_all_single(
            out, read, list(received), list(sent), group=self.group
        )


def _rows(tensor: Tensor, counts: Sequence[int]) -> Tensor:
    """As many rows as are sent, or come, of a tensor that has fewer: each of its rows is read, or
    added to, once for each rank."""
    return tensor[:1].expand(sum(counts), *tensor.shape[1:])
