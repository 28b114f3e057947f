"""What the parts of an emulated rank share."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from trainscout.simulators.predictor.question.gpu import Gpu

from .distributed.peers import Peers
from .memory import DeviceMemory
from .native import Shim
from .recorder import Recorder
from .stream_order import StreamOrder

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode


class Numbers:
    """Numbers of communications and of their batches, from 0 in each trace; names of groups."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A new trace begins."""
        # Each call: the next communication's, and the next batch's.
        self.work, self.batch = itertools.count().__next__, itertools.count().__next__
        self._groups: Counter[str] = Counter()

    def group(self, name: str) -> str:
        """What a group is called in the trace: torch gives names again after all are destroyed."""
        self._groups[name] += 1
        return name if self._groups[name] == 1 else f"{name}.{self._groups[name]}"


@dataclass
class RankState:
    """One emulated rank of this process.

    ``lock`` is held while an operation is answered, as torch lets other threads run meanwhile.
    ``pinned`` are the storages the script pinned: ordinary memory here, but scripts ask.
    ``backward`` follows compiled regions through the backward pass. ``notices`` follows what
    torch's engine waits for; ``updates`` finds optimizer steps that no optimizer of torch's takes,
    until one does; ``functional`` answers functional collectives, which come through the
    dispatcher. They are set while installing. While ``peers_agree``, what other ranks send is what
    this rank holds; ``peers`` are those that run beside it, if any.
    ``is_child``: a process the script started, which has no device. ``be_rank`` gives it one, and
    begins the rank's trace in it, where that may be; ``end_rank`` ends that trace.
    """

    rank: int
    world_size: int
    local_world_size: int
    gpu: Gpu
    capacity_bytes: int
    shim: Shim
    recorder: Recorder
    order: StreamOrder
    memory: DeviceMemory
    dataless: FakeTensorMode
    values: Any
    numbers: Numbers
    lock: Any = field(default_factory=RLock)
    pinned: WeakSet[Any] = field(default_factory=WeakSet)
    backward: Any = None
    notices: Any = None
    updates: Any = None
    functional: Any = None
    peers_agree: bool = False
    peers: Peers = field(init=False)
    is_child: bool = False
    be_rank: Any = None
    end_rank: Any = None

    def __post_init__(self) -> None:
        self.peers = Peers(None, self.rank, (self.rank,))

    @contextlib.contextmanager
    def agreement(self) -> Iterator[None]:
        """A time in which what other ranks send is what this rank holds."""
        self.peers_agree = True
        try:
            yield
        finally:
            self.peers_agree = False
