"""A sink that keeps events, and which of them were issued inside a module's forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainscout.simulators.virtual_cluster.emulation.sink import ListSink
from trainscout.simulators.virtual_cluster.traces.events import Event


class EventList(ListSink):
    """``in_forward`` are indices into ``events``."""

    def __init__(self) -> None:
        super().__init__()
        self.in_forward: set[int] = set()
        self.depth = 0
        self.emit = self._emit

    def _emit(self, event: Event) -> None:
        if self.depth:
            self.in_forward.add(len(self.events))
        self.events.append(event)

    def clear(self) -> None:
        """Forget what was recorded so far."""
        self.events.clear()
        self.in_forward.clear()


@contextmanager
def watching_modules(events: EventList) -> Iterator[None]:
    """Tell forward passes that autograd repeats from what autograd launches itself."""
    from torch.nn.modules import module

    def enter(*_: Any) -> None:
        events.depth += 1

    def leave(*_: Any) -> None:
        events.depth -= 1

    before = module.register_module_forward_pre_hook(enter)
    after = module.register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()
