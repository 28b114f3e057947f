"""A ``torch`` with two streams and a simulated clock: enough of CUDA to time overlap on.

Each stream has a cursor, the device time at which what was launched on it ends; the host's time
moves when it synchronises. A call on the current stream takes its seconds, times
``kernel_slowdown`` for the part beside a copy; a copy that starts while kernels are queued takes
``copy_slowdown`` times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


class Stream:
    def __init__(self, priority: int = 0) -> None:
        self.cursor_s = 0.0


class Event:
    gpu: FakeCuda

    def __init__(self, enable_timing: bool = False) -> None:
        self.at_s = float("nan")

    def record(self) -> None:
        self.at_s = self.gpu.current.cursor_s

    def synchronize(self) -> None:
        self.gpu.host_s = max(self.gpu.host_s, self.at_s)

    def query(self) -> bool:
        return self.at_s <= self.gpu.host_s

    def elapsed_time(self, end: Event) -> float:
        return (end.at_s - self.at_s) * 1e3


@dataclass
class FakeCuda:
    """Stands for ``torch.cuda``; ``copies`` are the (start, end) of every copy."""

    kernel_slowdown: float = 1.0
    copy_slowdown: float = 1.0
    host_s: float = 0.0
    copies: list[tuple[float, float]] = field(default_factory=list)
    Stream: type[Stream] = Stream

    def __post_init__(self) -> None:
        self.default = self.current = Stream()
        self.streams = [self.default]
        self.Event = type("BoundEvent", (Event,), {"gpu": self})

    def _sleep(self, cycles: int) -> None:
        self.current.cursor_s = max(self.current.cursor_s, self.host_s) + cycles / 2e9

    def synchronize(self) -> None:
        latest = max(stream.cursor_s for stream in self.streams)
        self.host_s = max(self.host_s, latest)
        for stream in self.streams:
            stream.cursor_s = self.host_s

    @contextmanager
    def stream(self, side: Stream) -> Iterator[None]:
        if side not in self.streams:
            self.streams.append(side)
        before, self.current = self.current, side
        side.cursor_s = max(side.cursor_s, self.host_s)
        yield
        self.current = before

    def kernel(self, seconds: float) -> None:
        """Run one kernel on the current stream."""
        begin = max(self.current.cursor_s, self.host_s)
        beside = any(start <= begin < end for start, end in self.copies)
        self.current.cursor_s = begin + seconds * (self.kernel_slowdown if beside else 1.0)

    def copy(self, seconds: float) -> None:
        """Run one copy on the current (side) stream."""
        begin = self.current.cursor_s
        busy = self.default.cursor_s > begin
        end = begin + seconds * (self.copy_slowdown if busy else 1.0)
        self.copies.append((begin, end))
        self.current.cursor_s = end


@dataclass
class FakeTorch:
    cuda: Any
