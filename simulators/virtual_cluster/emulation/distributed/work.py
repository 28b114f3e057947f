"""Handles of launched communications: launching and waiting are two events."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.emulation.stream_order import Knowledge
from trainscout.simulators.virtual_cluster.traces.events import WorkWait


class _Over(dist._Work):
    """What anybody may ask of communication: it has succeeded."""

    def __init__(self, outputs: Any = None) -> None:
        super().__init__()
        self._outputs = outputs

    def result(self) -> Any:
        """The tensors it wrote."""
        return self._outputs

    def synchronize(self) -> None:
        """As ``wait``."""
        self.wait()

    def is_completed(self) -> bool:
        """Between hosts it takes no time."""
        return True

    def is_success(self) -> bool:
        """Nothing fails."""
        return True

    def exception(self) -> None:
        """Nothing fails."""


class Arrival:
    """What streams wait for of one launched communication.

    Like NCCL's, it keeps the tensors alive until a stream waits, so that their memory is not
    reused under way; from then on those who hold the work or its future do.
    """

    def __init__(
        self,
        state: RankState,
        number: int,
        point: Knowledge,
        tensors: list[torch.Tensor],
        blocks_host: bool,
    ) -> None:
        self._state = state
        self.number = number
        self._point = point
        self._tensors: list[torch.Tensor] | None = tensors
        self._blocks_host = blocks_host
        # What is to be learnt from other ranks before anybody goes on with what came.
        self.arrives: Callable[[], None] | None = None

    def waited_on(self, stream: int, blocks_host: bool = False) -> None:
        """A stream waits for this communication, and the host where it ``blocks_host``."""
        state = self._state
        if self.arrives is not None:
            arrives, self.arrives = self.arrives, None
            arrives()
        state.order.wait_point(stream, self._point)
        blocks = (
            blocks_host or self._blocks_host or os.environ.get("TORCH_NCCL_BLOCKING_WAIT") == "1"
        )
        if blocks:
            state.order.host_wait_point(self._point)
        state.recorder.emit(WorkWait(self.number, stream, blocks))
        self._tensors = None

    def is_over(self) -> bool:
        """Whether it is, as far as the host knows (``StreamOrder.asked_in_vain``)."""
        order = self._state.order
        if not order.host_waited(self._point):
            if order.asked_in_vain(("work", self.number)):
                return False
            with self._state.recorder:
                self.waited_on(self._state.shim.stream(), blocks_host=True)
        return True


class VirtualWork(_Over):
    """One launched communication: ``wait`` holds back the current stream, not the host."""

    def __init__(self, state: RankState, arrival: Arrival, outputs: Any) -> None:
        super().__init__(outputs)
        self._state = state
        self.arrival = arrival
        self._future: Any = None

    def wait(self, timeout: Any = None) -> bool:
        """Later work of the current stream runs after this communication."""
        with self._state.recorder:
            self.arrival.waited_on(self._state.shim.stream())
        return True

    def is_completed(self) -> bool:
        """Whether it is over."""
        return self.arrival.is_over()

    def block_current_stream(self) -> None:
        """As ``wait``."""
        self.wait()

    def get_future(self) -> Any:
        """A completed future; waiting for it is waiting for this communication.

        Torch waits for futures by events, and would wait forever for one that never completes.
        """
        if self._future is None:
            notices = self._state.notices
            device = torch.device("cuda", self._state.shim.device())
            self._future = torch.futures.Future(devices=[device])
            notices.future_of = self.arrival
            try:
                self._future.set_result(self._outputs)
            finally:
                notices.future_of = None
            self._outputs = None
        return self._future


class WorkBatch(_Over):
    """Communications launched as one group."""

    def __init__(self, works: Sequence[VirtualWork | HostWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: Any = None) -> bool:
        """Wait for each."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether each is over."""
        return all(work.is_completed() for work in self._works)

    def result(self) -> Any:
        """The tensors they wrote."""
        return [tensor for work in self._works for tensor in work.result() or ()]

    def get_future(self) -> Any:
        """A future of all of them."""
        return torch.futures.collect_all([work.get_future() for work in self._works])


class HostWork(_Over):
    """A communication between hosts: over when another rank's message, if any, has come."""

    def __init__(self, outputs: Any = None, arrives: Callable[[], None] | None = None) -> None:
        super().__init__(outputs)
        self._arrives = arrives

    def wait(self, timeout: Any = None) -> bool:
        """Until it is over."""
        if self._arrives is not None:
            arrives, self._arrives = self._arrives, None
            arrives()
        return True

    def get_future(self) -> Any:
        """A completed future."""
        future: Any = torch.futures.Future()
        future.set_result(self._outputs)
        return future
