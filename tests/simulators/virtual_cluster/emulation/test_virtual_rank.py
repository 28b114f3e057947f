"""A process can be one rank after another, each with a trace that knows nothing of the others."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.simulators.virtual_cluster.emulation.sections import ROOT
from tests.warm.session import run_rank
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.virtual_rank import check_ranks


def test_ranks_must_be_in_the_world() -> None:
    check_ranks(8, 7, 8)
    with pytest.raises(InputError, match="--rank=8"):
        check_ranks(8, 8, 8)


def test_restarting_gives_the_trace_a_fresh_process_would() -> None:
    pytest.importorskip("torch")
    done = run_rank(
        str(Path(__file__).with_name("restarts.py")),
        cwd=ROOT,
        environment={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    first, other, again = json.loads(done.stdout)
    groups = [(event["description"], event["ranks"]) for event in other if "ranks" in event]
    assert groups == [("default_pg", list(range(32))), ("HALF", list(range(1, 32, 2)))]
    # Site numbers aside: the process has run the lines before.
    for events in (first, again):
        for event in events:
            event.pop("site", None)
    assert [event["event"] for event in first] == ["Group", "Group", "Op", "Collective"]
    assert first == again
