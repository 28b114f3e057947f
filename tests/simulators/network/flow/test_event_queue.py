from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.network.flow.event_queue import put_all, remove

FLOWS = 40


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_flows_leave_in_order_however_their_times_changed(data: st.DataObject) -> None:
    heap = np.zeros(FLOWS, dtype=np.int64)
    place = np.full(FLOWS, -1, dtype=np.int64)
    event = np.zeros(FLOWS, dtype=np.int64)
    size = 0
    expected: dict[int, int] = {}
    flows = st.lists(st.integers(0, FLOWS - 1), unique=True)
    size = put_all(heap, place, event, size, np.arange(FLOWS), np.arange(FLOWS) * 7 % 41, FLOWS)
    expected.update({flow: flow * 7 % 41 for flow in range(FLOWS)})
    for _ in range(data.draw(st.integers(1, 4))):
        gone = data.draw(flows)
        for flow in gone:
            size = remove(heap, place, event, size, flow)
            expected.pop(flow, None)
        moved = np.array(data.draw(flows), dtype=np.int64)
        times = np.array(
            [data.draw(st.integers(0, 50)) for _ in range(len(moved))], dtype=np.int64
        )
        size = put_all(heap, place, event, size, moved, times, len(moved))
        expected.update(zip(moved.tolist(), times.tolist(), strict=True))
    left = []
    while size:
        left.append((int(event[heap[0]]), int(heap[0])))
        size = remove(heap, place, event, size, heap[0])
    assert [time for time, _ in left] == sorted(expected.values())
    assert {flow: time for time, flow in left} == expected
    assert (place == -1).all()
