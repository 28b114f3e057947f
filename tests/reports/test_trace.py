"""Chrome trace events of a timeline."""

from __future__ import annotations

import json

import pytest

from reports.trace import chrome_trace
from simulators.job import Job, Recipe, Training
from simulators.replay.timeline import STREAMS, operation_timeline
from tests.samples import CLUSTER, GPU, MODEL


def test_every_operation_is_one_complete_event_in_microseconds() -> None:
    job = Job(MODEL, GPU, CLUSTER, Training(32, 1e9), Recipe(tp=4, pp=2))
    timeline = operation_timeline(job, micro_batches=2)
    events = json.loads(chrome_trace(timeline))["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == len(timeline.name)
    last_us = max(event["ts"] + event["dur"] for event in complete)
    assert last_us == pytest.approx(timeline.step_time_s * 1e6, abs=0.01)
    threads = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert threads == [*STREAMS, *STREAMS]
