"""CUDA graphs: what is launched while one is captured is kept, and launched by its replays."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch.distributed import distributed_c10d

from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.traces.events import (
    OPTIMIZER,
    Begin,
    Collective,
    End,
    Event,
    EventRecord,
    EventWait,
    Op,
    Phase,
    PointToPoint,
    WorkWait,
)

# What a graph holds; the rest, memory and the host's time among it, happens while it is captured.
_KEPT = (Op, Collective, PointToPoint, WorkWait, EventRecord, EventWait, Phase, Begin, End)


class _Capture:
    """A sink that keeps launches and hands on what is none."""

    def __init__(self, sink: Any) -> None:
        self.sink = sink
        self.kept: list[Event] = []
        self.elapsed_ms, self.close = sink.elapsed_ms, sink.close

    def emit(self, event: Event) -> None:
        if isinstance(event, _KEPT):
            self.kept.append(event)
        else:
            self.sink.emit(event)


def install_graphs(state: RankState) -> None:
    """Capture and replay. Once per process."""
    pools = count(1)

    def is_capturing() -> bool:
        return isinstance(state.recorder.sink, _Capture)

    class CUDAGraph:
        """The launches of one capture.

        Each replay launches them on the streams of the capture, between the current stream's work
        before and after. Memory that a graph would keep between replays is not kept.
        """

        def __init__(self, keep_graph: bool = False) -> None:
            self._launches: list[Event] = []
            self._stream, self._pool = 0, (0, next(pools))

        def capture_begin(self, pool: Any = None, *args: Any, **kwargs: Any) -> None:
            """What the current stream gets from now on is kept."""
            self._pool = pool or self._pool
            self._stream = state.shim.stream()
            self._before = state.recorder.place()
            state.recorder.sink = _Capture(state.recorder.sink)

        def capture_end(self) -> None:
            """Nothing of it has run: the step is where it was."""
            capture = state.recorder.sink
            assert isinstance(capture, _Capture)
            state.recorder.sink, self._launches = capture.sink, capture.kept
            state.recorder.return_to(self._before)
            # Nobody need wait for what did not run.
            state.order.host_wait_stream(self._stream)
            for event in self._launches:
                if isinstance(event, (Collective, PointToPoint)):
                    _launches(event.group).count_on(event, -1)

        def instantiate(self) -> None:
            """It is ready."""

        def replay(self) -> None:
            """Launch what was kept."""
            recorder = state.recorder
            recorder.enter()
            current = state.shim.stream()
            _join(state, current, self._stream)
            works: dict[int, int] = {}
            for event in self._launches:
                if isinstance(event, Phase):
                    if recorder.phase == OPTIMIZER:
                        recorder.optimizer_ended()
                    recorder.enter_phase(event.phase)
                    continue
                if isinstance(event, (Collective, PointToPoint)):
                    works[event.work] = state.numbers.work()
                    sequence = _launches(event.group).count_on(event, 1)
                    event = replace(event, work=works[event.work], sequence=sequence)
                    recorder.collectives += 1
                elif isinstance(event, WorkWait):
                    event = replace(event, work=works.get(event.work, event.work))
                recorder.operations += isinstance(event, Op)
                recorder.emit(event)
            _join(state, self._stream, current)
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

    torch._C._host_emptyCache = lambda: None
    for module in (torch.cuda, torch.cuda.graphs):
        module.CUDAGraph = CUDAGraph
        module.graph_pool_handle = lambda: (0, next(pools))
        module.is_current_stream_capturing = is_capturing


def _join(state: RankState, first: int, then: int) -> None:
    """What ``then`` gets from here on runs after what ``first`` has."""
    if first == then:
        return
    event = state.shim.new_event()
    state.order.record(event, first)
    state.recorder.emit(EventRecord(event, first))
    state.order.wait(event, then)
    state.recorder.emit(EventWait(event, then))


def _launches(name: str) -> Any:
    """Who counts the communications of a group."""
    for group in distributed_c10d._world.pg_map:
        launches = getattr(group, "launches", None)
        if launches is not None and launches.name == name:
            return launches
    raise RuntimeError(f"the group {name} of a captured communication is gone")
