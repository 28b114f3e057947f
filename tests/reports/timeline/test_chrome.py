"""Chrome traces of recipes: what is in the file is what was played, and hangs together."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reports.timeline.jobs import RECIPES, job_of, played
from trainscout.reports.timeline import chrome
from trainscout.reports.timeline.chrome import LINK_COUNTERS, MEMORY_COUNTER, write_chrome
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.replay.priced import launches_of
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.replay.timeline import (
    COMPUTE,
    DATA_PARALLEL,
    HOST,
    NONE,
    PIPELINE,
    Timeline,
)
from trainscout.simulators.predictor.workload.ir import Collective, SendRecv
from trainscout.simulators.predictor.workload.ranks import group_of, place_of, stage_rank

Events = list[dict[str, Any]]
# Times are written in nanoseconds.
TICK_US = 0.001


@functools.cache
def written_once(name: str) -> tuple[Events, Timeline]:
    """The file of every stage's first rank, and what was played; several tests look at it."""
    with tempfile.TemporaryDirectory() as folder:
        return written(Path(folder) / "t.json", name)


def written(
    path: Path, name: str, ranks: tuple[int, ...] | None = None
) -> tuple[Events, Timeline]:
    job = job_of(name)
    timeline, memory = played(job)
    if ranks is None:
        ranks = tuple(stage_rank(job, stage) for stage in range(job.recipe.pp))
    write_chrome("timeline.file", path, job, timeline, ranks, memory)
    return json.loads(path.read_text())["traceEvents"], timeline


def slices(events: Events) -> Events:
    return [event for event in events if event["ph"] == "X"]


def threads(events: Events) -> dict[tuple[int, int], str]:
    named = (event for event in events if event["name"] == "thread_name")
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in named}


@pytest.mark.parametrize("name", RECIPES)
def test_every_operation_of_every_rank_is_one_slice(name: str) -> None:
    events, timeline = written_once(name)
    names = threads(events)
    by_thread = Counter(names[event["pid"], event["tid"]] for event in slices(events))
    streams = np.bincount(timeline.stream, minlength=5)
    assert by_thread["host launches"] == streams[HOST]
    assert by_thread["kernels"] == streams[COMPUTE]
    assert by_thread["data parallelism"] == streams[DATA_PARALLEL]
    sent = sum(count for thread, count in by_thread.items() if thread.startswith("send"))
    received = sum(count for thread, count in by_thread.items() if thread.startswith("receive"))
    assert sent == received == len(timeline.sends[0])
    assert by_thread["passes"] == len(timeline.passes.name) + len(timeline.block_name)
    last_us = max(event["ts"] + event["dur"] for event in slices(events))
    assert last_us == pytest.approx(timeline.step_time_s * 1e6, abs=TICK_US)


@pytest.mark.parametrize("name", RECIPES)
def test_slices_of_a_thread_nest_and_never_overlap(name: str) -> None:
    events, _ = written_once(name)
    by_thread: dict[tuple[int, int], Events] = defaultdict(list)
    for event in slices(events):
        by_thread[event["pid"], event["tid"]].append(event)
    for found in by_thread.values():
        open_until: list[int] = []
        # Ties: the longer slice is around the shorter one.
        for event in sorted(found, key=lambda each: (each["ts"], -each["dur"])):
            start = round(event["ts"] * 1000)
            end = start + round(event["dur"] * 1000)
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


@pytest.mark.parametrize("name", RECIPES)
def test_streams_of_a_rank_take_the_time_of_their_operations(name: str) -> None:
    events, timeline = written_once(name)
    job = job_of(name)
    names = threads(events)
    seconds = timeline.end_s - timeline.start_s
    for stage in range(job.recipe.pp):
        shown: dict[str, float] = defaultdict(float)
        for event in slices(events):
            if event["pid"] == stage_rank(job, stage):
                shown[names[event["pid"], event["tid"]]] += event["dur"] / 1e6
        here = timeline.stage == stage
        for stream, thread in ((COMPUTE, "kernels"), (HOST, "host launches")):
            expected = float(seconds[here & (timeline.stream == stream)].sum())
            assert shown[thread] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", RECIPES)
def test_every_kernel_is_led_to_by_the_launch_before_it(name: str) -> None:
    events, timeline = written_once(name)
    launches = {e["bind_id"]: e for e in slices(events) if e.get("flow_out")}
    led = [event for event in slices(events) if event.get("flow_in")]
    assert len(launches) == len(led) == (timeline.launched_by != NONE).sum()
    for event in led:
        launch = launches[event["bind_id"]]
        assert launch["pid"] == event["pid"]
        assert launch["ts"] + launch["dur"] <= event["ts"] + TICK_US


def test_a_launch_of_several_kernels_says_so() -> None:
    events, timeline = written_once("experts")
    launches = {e["bind_id"]: e.get("args", {}) for e in slices(events) if e.get("flow_out")}
    named = {e["name"]: launches[e["bind_id"]] for e in slices(events) if e.get("flow_in")}
    launched = {op.op.name: launches_of(op.op) for op in timeline.operations if op is not None}
    assert max(launched.values()) > 1
    for name, args in named.items():
        assert args.get("launches", 1) == launched[name]


def arrows(events: Events) -> dict[int, Events]:
    found: dict[int, Events] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            found[event["id"]].append(event)
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_arrows_join_slices_forward_in_time(tmp_path: Path, name: str) -> None:
    job = job_of(name)
    ranks = tuple(range(job.world_size))
    events, timeline = written(tmp_path / "t.json", name, ranks)
    by_thread: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in slices(events):
        by_thread[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    found = arrows(events)
    for ends in found.values():
        assert [end["ph"] for end in ends] == ["s", *"t" * (len(ends) - 2), "f"]
        assert all(a["ts"] <= b["ts"] for a, b in itertools.pairwise(ends))
        for end in ends:
            around = by_thread[end["pid"], end["tid"]]
            assert any(low <= end["ts"] <= high for low, high in around)
    # With all ranks shown every transfer and every collective of two or more is an arrow.
    expected = len(timeline.sends[0]) * job.world_size / job.recipe.pp
    for rank in ranks:
        for row in np.flatnonzero(timeline.stage == place_of(job, rank).stage).tolist():
            priced = timeline.operations[timeline.operation[row]]
            if priced is None or not isinstance(priced.op, Collective | SendRecv):
                continue
            if timeline.stream[row] != PIPELINE and timeline.end_s[row] > timeline.start_s[row]:
                # Each member of a group finds the one arrow of all of them.
                expected += 1 / len(group_of(job, priced.op.communicator, rank))
    assert len(found) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["pipeline", "interleaved", "gpipe"])
def test_what_is_sent_leads_to_the_kernels_that_need_it(name: str) -> None:
    events, _ = written_once(name)
    names = threads(events)
    for ends in arrows(events).values():
        at = [names[end["pid"], end["tid"]].split()[0] for end in ends]
        if at[0] == "send":
            assert at[1:] == ["receive", "kernels"]
            assert ends[0]["pid"] != ends[1]["pid"] == ends[2]["pid"]


def counters(events: Events, name: str) -> dict[int, list[tuple[float, float]]]:
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            ((unit, value),) = event["args"].items()
            if f"{event['name']} {unit}" == name:
                found[event["pid"]].append((event["ts"], value))
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_the_memory_counter_peaks_at_the_prediction(tmp_path: Path, name: str) -> None:
    job = job_of(name)
    timeline, memory = played(job, job.num_micro_batches)
    ranks = tuple(stage_rank(job, stage) for stage in range(job.recipe.pp))
    path = tmp_path / "t.json"
    write_chrome("timeline.file", path, job, timeline, ranks, memory)
    found = counters(json.loads(path.read_text())["traceEvents"], MEMORY_COUNTER)
    predicted = ReplaySimulator().simulate(job).memory.per_stage
    for stage, rank in enumerate(ranks):
        assert max(value for _, value in found[rank]) == predicted[stage].peak_allocated_bytes


@pytest.mark.parametrize("name", RECIPES)
def test_link_counters_are_never_negative_and_end_at_nothing(name: str) -> None:
    events, _ = written_once(name)
    used = [counters(events, counter) for counter in LINK_COUNTERS.values()]
    assert any(used)
    for found in used:
        for steps in found.values():
            assert min(value for _, value in steps) >= 0
            assert steps[-1][1] == 0
            assert [at for at, _ in steps] == sorted(at for at, _ in steps)


def test_processes_are_named_by_stage_rank_and_coordinates(tmp_path: Path) -> None:
    events, _ = written(tmp_path / "t.json", "pipeline", (0, 5, 15))
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert named == {
        0: "stage 0, rank 00: tp 0, dp 0",
        5: "stage 1, rank 05: tp 1, dp 0",
        15: "stage 3, rank 15: tp 1, dp 1",
    }


def test_compressed_is_the_same_and_the_same_again(tmp_path: Path) -> None:
    written(tmp_path / "t.json", "pipeline")
    job = job_of("pipeline")
    timeline, memory = played(job)
    for path in ("a.json.gz", "b.json.gz"):
        write_chrome("timeline.file", tmp_path / path, job, timeline, (0, 2, 4, 6), memory)
    first, second = ((tmp_path / each).read_bytes() for each in ("a.json.gz", "b.json.gz"))
    assert first == second
    one_a_stage = tuple(stage_rank(job, stage) for stage in range(4))
    write_chrome("timeline.file", tmp_path / "c.json.gz", job, timeline, one_a_stage, memory)
    unpacked = gzip.decompress((tmp_path / "c.json.gz").read_bytes())
    assert unpacked == (tmp_path / "t.json").read_bytes()


def test_refuses_what_no_browser_could_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chrome, "MOST_SLICES", 1000)
    with pytest.raises(InputError, match=r"timeline\.file=.*fewer timeline\.ranks"):
        written(tmp_path / "t.json", "pipeline")
    assert not list(tmp_path.iterdir())
