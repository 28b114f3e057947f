"""NVTX ranges become ranges of the trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.traces.events import Begin, End


def range_functions(state: RankState) -> dict[str, Callable[..., Any]]:
    """The functions of ``torch.cuda.nvtx``."""
    depth = [0]

    def range_push(msg: object) -> int:
        state.recorder.enter()
        state.recorder.emit(Begin("user", str(msg)))
        state.recorder.leave()
        depth[0] += 1
        return depth[0] - 1

    def range_pop() -> int:
        if depth[0]:
            state.recorder.enter()
            state.recorder.emit(End("user"))
            state.recorder.leave()
            depth[0] -= 1
        return depth[0]

    # Ranges that may overlap have no place among nested ones.
    def range_start(msg: object) -> int:
        return 0

    def range_end(range_id: int) -> None:
        return None

    def mark(msg: object) -> None:
        return None

    @contextlib.contextmanager
    def nested(msg: object, *args: object, **kwargs: object) -> Iterator[None]:
        range_push(str(msg).format(*args, **kwargs))
        try:
            yield
        finally:
            range_pop()

    return {
        "range_push": range_push,
        "range_pop": range_pop,
        "range_start": range_start,
        "range_end": range_end,
        "mark": mark,
        "range": nested,
    }
