"""What Perfetto is given: slices by stream, arrows between ranks, memory over time."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.simulators.virtual_cluster.traces.megatron_like import Layout, megatron_trace
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces.chrome import THREADS
from trainscout.simulators.virtual_cluster.traces.events import (
    Alloc,
    Begin,
    Collective,
    End,
    Event,
    Free,
    Header,
    Op,
    PointToPoint,
    Resize,
    Trace,
    ValueRead,
)
from trainscout.simulators.virtual_cluster.traces.perfetto import EventTimes, write_perfetto

LAYOUT = Layout(tp=2, dp=1, pp=2, micro_batches=3)
LAUNCHES = (Op, Collective, PointToPoint)


def events_of(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(text)["traceEvents"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    return [megatron_trace(LAYOUT, rank) for rank in range(LAYOUT.world_size)]


def test_every_launch_is_a_slice_on_a_named_thread(tmp_path: Path, traces: list[Trace]) -> None:
    write_perfetto(tmp_path / "t.json", traces)
    events = events_of(tmp_path / "t.json")
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    slices = [event for event in events if event["ph"] == "X"]
    for trace in traces:
        rank = trace.header.rank
        ours = [event for event in slices if event["pid"] == rank and event["tid"] >= THREADS + 10]
        launches = [event for event in trace.events if isinstance(event, LAUNCHES)]
        assert len(ours) == len(launches)
        order = [trace.events[round(event["ts"])] for event in ours]
        assert order == launches
        assert all(event["dur"] == 1 for event in ours)
    assert {names[event["pid"], event["tid"]] for event in slices} >= {
        "phases",
        "stream 0",
        "TENSOR_MODEL_PARALLEL_GROUP [0, 1]",
        "PIPELINE_MODEL_PARALLEL_GROUP [1, 3]",
    }
    gemm = next(event for event in slices if event["name"] == "aten.mm.default")
    assert gemm["args"]["inputs"][0].startswith("bfloat16[512,1024]@")
    assert gemm["args"]["site"] == "train.py:10 in step"


def test_arrows_join_what_meets(tmp_path: Path, traces: list[Trace]) -> None:
    write_perfetto(tmp_path / "t.json", traces)
    events = events_of(tmp_path / "t.json")
    slices = {
        (event["pid"], event["tid"], event["ts"]): event for event in events if event["ph"] == "X"
    }
    arrows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            arrows[event["id"]].append(event)
    transfers = 0
    for ends in arrows.values():
        assert [end["ph"] for end in ends] == ["s"] + ["t"] * (len(ends) - 2) + ["f"]
        joined = [slices[end["pid"], end["tid"], end["ts"] - 0.5] for end in ends]
        kinds = [each["name"].split()[0] for each in joined]
        assert kinds in ([kinds[0]] * len(kinds), ["send", "recv"])
        transfers += kinds == ["send", "recv"]
        assert len({end["pid"] for end in ends}) == len(ends)
    assert transfers == 2 * 2 * LAYOUT.micro_batches


def trace_of(*events: Event) -> Trace:
    return Trace(Header(1, 0, 1, "h100", 1, (), {}), events)


def test_memory_is_counted_over_time(tmp_path: Path) -> None:
    fused = Begin("fused", "gelu"), Alloc(3, 0, 0), Free(3), End("fused")
    trace = trace_of(*(Alloc(1, 100, 0), Alloc(2, 50, 0), *fused, Resize(1, 10), Free(2), Free(1)))
    write_perfetto(tmp_path / "t.json.gz", [trace])
    counts = [
        event["args"]["(bytes)"]
        for event in events_of(tmp_path / "t.json.gz")
        if event["ph"] == "C"
    ]
    assert counts == [100, 150, 60, 10, 0]


def test_times_of_a_replay_are_shown(tmp_path: Path) -> None:
    trace = trace_of(
        Begin("module", "layer"),
        Op("aten.mm.default", (), (), 3),
        Op("aten.add.Tensor", (), (), 3),
        ValueRead("item", 1.0, "invented", 3),
        End("module"),
    )
    starts = np.array([0.0, 2e-3, np.nan, 1e-3, 5e-3])
    ends = np.array([0.0, 4e-3, np.nan, 4e-3, 5e-3])
    write_perfetto(tmp_path / "t.json", [trace], {0: EventTimes(starts, ends)})
    found = {
        event["name"]: (event["tid"] - THREADS, event["ts"], event["dur"])
        for event in events_of(tmp_path / "t.json")
        if event["ph"] == "X"
    }
    assert found == {
        "aten.mm.default": (13, 2000.0, 2000.0),
        "item": (0, 1000.0, 3000.0),
        "module layer": (2, 0.0, 5000.0),
    }


def test_times_of_another_trace_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    times = EventTimes(np.zeros(2), np.zeros(2))
    with pytest.raises(InputError, match="not those of its 1 events"):
        write_perfetto(path, [trace_of(Free(1))], {0: times})
    with pytest.raises(InputError, match="rank 0"):
        write_perfetto(path, [trace_of(Free(1))], {1: times})
    assert not path.exists()


def test_equal_traces_are_equal_files(tmp_path: Path, traces: list[Trace]) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        write_perfetto(tmp_path / name, traces)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_perfetto(tmp_path / "missing" / "t.json", [trace_of()])
