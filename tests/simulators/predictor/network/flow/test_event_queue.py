from __future__ import annotations

import numpy as np
import pytest

from trainscout.simulators.predictor.network.flow.event_queue import put_all, remove

FLOWS = 300


@pytest.mark.parametrize("seed", range(30))
def test_flows_leave_in_order_however_their_times_changed(seed: int) -> None:
    """Few and many are moved at once: both ways of moving them, earlier and later."""
    random = np.random.default_rng(seed)
    heap = np.zeros(FLOWS, dtype=np.int64)
    place = np.full(FLOWS, -1, dtype=np.int64)
    event = np.zeros(FLOWS, dtype=np.int64)
    size = 0
    expected: dict[int, int] = {}
    for count in (250, 40, 12, 60, 2, 30, 100, 8):
        moved = random.permutation(FLOWS)[:count]
        times = random.integers(0, 1000, count)
        size = put_all(heap, place, event, size, moved, times, count)
        expected.update(zip(moved.tolist(), times.tolist(), strict=True))
        above = (np.arange(1, size) - 1) // 2
        assert (event[heap[above]] <= event[heap[1:size]]).all()
        for flow in random.permutation(FLOWS)[:5].tolist():
            size = remove(heap, place, event, size, flow)
            expected.pop(flow, None)
    left = []
    while size:
        left.append((int(event[heap[0]]), int(heap[0])))
        size = remove(heap, place, event, size, heap[0])
    assert [time for time, _ in left] == sorted(expected.values())
    assert {flow: time for time, flow in left} == expected
    assert (place == -1).all()
