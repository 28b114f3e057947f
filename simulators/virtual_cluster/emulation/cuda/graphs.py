"""CUDA graphs: what is launched while one is captured is kept, and launched by its replays."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar

import torch
from torch.distributed import distributed_c10d

from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.traces import events

# What a graph holds; the rest, memory and the host's time among it, happens while it is captured.
_KEPT = (
    events.Op,
    events.Collective,
    events.PointToPoint,
    events.WorkWait,
    events.EventRecord,
    events.EventWait,
    events.Phase,
    events.Begin,
    events.End,
)
_POOLS = count(1)


class _Capture:
    """A sink that keeps launches and hands on what is none."""

    def __init__(self, sink: Any) -> None:
        self.sink = sink
        self.kept: list[events.Event] = []
        self.elapsed_ms, self.close = sink.elapsed_ms, sink.close

    def emit(self, event: events.Event) -> None:
        if isinstance(event, _KEPT):
            self.kept.append(event)
        else:
            self.sink.emit(event)


class CUDAGraph:
    """The launches of one capture.

    Each replay launches them on the streams of the capture, between the current stream's work
    before and after. Memory that a graph would keep between replays is not kept.
    """

    state: ClassVar[RankState]

    def __init__(self, keep_graph: bool = False) -> None:
        self._launches: list[events.Event] = []
        self._stream, self._pool = 0, _new_pool()

    def capture_begin(self, pool: Any = None, *args: Any, **kwargs: Any) -> None:
        """What the current stream gets from now on is kept."""
        self._pool = pool or self._pool
        self._stream = self.state.shim.stream()
        self._before = self.state.recorder.place()
        self.state.recorder.sink = _Capture(self.state.recorder.sink)

    def capture_end(self) -> None:
        """Nothing of it has run: the step is where it was."""
        capture = self.state.recorder.sink
        assert isinstance(capture, _Capture)
        self.state.recorder.sink, self._launches = capture.sink, capture.kept
        self.state.recorder.return_to(self._before)
        # Nobody need wait for what did not run.
        self.state.order.host_wait_stream(self._stream)
        for event in self._launches:
            if isinstance(event, (events.Collective, events.PointToPoint)):
                _launches(event.group).count_on(event, -1)

    def instantiate(self) -> None:
        """It is ready."""

    def replay(self) -> None:
        """Launch what was kept."""
        recorder = self.state.recorder
        recorder.enter()
        current = self.state.shim.stream()
        _join(self.state, current, self._stream)
        works: dict[int, int] = {}
        for event in self._launches:
            if isinstance(event, events.Phase):
                if recorder.phase == events.OPTIMIZER:
                    recorder.optimizer_ended()
                recorder.enter_phase(event.phase)
                continue
            if isinstance(event, (events.Collective, events.PointToPoint)):
                works[event.work] = self.state.numbers.work()
                sequence = _launches(event.group).count_on(event, 1)
                event = replace(event, work=works[event.work], sequence=sequence)
                recorder.collectives += 1
            elif isinstance(event, events.WorkWait):
                event = replace(event, work=works.get(event.work, event.work))
            recorder.operations += isinstance(event, events.Op)
            recorder.emit(event)
        _join(self.state, self._stream, current)
        recorder.leave()

    def reset(self) -> None:
        """Forget what was kept."""
        self._launches = []

    def pool(self) -> tuple[int, int]:
        """Names the memory that it would keep."""
        return self._pool

    def enable_debug_mode(self) -> None:
        """There is nothing to see."""

    def debug_dump(self, debug_path: str) -> None:
        """There is nothing to see."""

    def register_generator_state(self, generator: Any) -> None:
        """Random numbers have no values."""


class MemoryPool:
    """A pool's name (``torch.cuda.MemPool``): what is allocated in one lies with all else."""

    allocator = None

    def __init__(self, *_: Any, **__: Any) -> None:
        self.id = _new_pool()

    def snapshot(self, *_: Any, **__: Any) -> list[Any]:
        """No segment is told apart."""
        return []

    def use_count(self) -> int:
        """Who holds it."""
        return 1


def install_graphs(state: RankState) -> None:
    """Capture and replay. Once per process."""
    CUDAGraph.state = state
    torch._C._host_emptyCache = lambda: None
    for module in (torch.cuda, torch.cuda.memory):
        module.MemPool = MemoryPool
        module.use_mem_pool = lambda *_: contextlib.nullcontext()
    for module in (torch.cuda, torch.cuda.graphs):
        module.CUDAGraph = CUDAGraph
        module.graph_pool_handle = _new_pool
        module.is_current_stream_capturing = lambda: isinstance(state.recorder.sink, _Capture)


def _new_pool() -> tuple[int, int]:
    return (0, next(_POOLS))


def _join(state: RankState, first: int, then: int) -> None:
    """What ``then`` gets from here on runs after what ``first`` has."""
    if first == then:
        return
    event = state.shim.new_event()
    state.order.record(event, first)
    state.recorder.emit(events.EventRecord(event, first))
    state.order.wait(event, then)
    state.recorder.emit(events.EventWait(event, then))


def _launches(name: str) -> Any:
    """Who counts the communications of a group."""
    for group in distributed_c10d._world.pg_map:
        launches = getattr(group, "launches", None)
        if launches is not None and launches.name == name:
            return launches
    raise RuntimeError(f"the group {name} of a captured communication is gone")
