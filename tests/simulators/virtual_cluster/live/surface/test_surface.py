"""Calls of ``torch.distributed`` and what is built on it, beside torch's own on the host."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.needs import emulation_misses
from tests.warm.session import ROOT, environment, run_python
from trainscout.simulators.virtual_cluster.traces import events, files

RANKS = range(4)
FOLDER = Path(__file__).parent


@pytest.mark.skipif(bool(emulation_misses()), reason=emulation_misses())
@pytest.mark.parametrize("tables", ["collectives groups", "sharding training"])
def test_values_and_launches_are_those_of_torch(tmp_path: Path, tables: str) -> None:
    script, size = str(FOLDER / "tables.py"), str(len(RANKS))
    real, live, traces = (tmp_path / name for name in ("real", "live", "traces"))
    real.mkdir()
    live.mkdir()
    host = environment() | {"SURFACE_OF_GLOO": "1"}
    done = run_python(script, str(real), *tables.split(), cwd=FOLDER, environment=host)
    assert done.returncode == 0, done.stdout + done.stderr
    words = ["-m", "trainscout", "live", "--world-size", size, "--all", "--traces", str(traces)]
    done = run_python(
        *words, "--", script, str(live), *tables.split(), cwd=ROOT, environment=environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in RANKS:
        name = f"rank-{rank}.json"
        expected, got = (json.loads((each / name).read_text()) for each in (real, live))
        launched = launches(traces, rank)
        for name, answer in got.items():
            answer["launched"] = launched[name]
        # What only devices do must run at least.
        failed = {name for name, answer in got.items() if "Traceback" in str(answer["values"])}
        differing = {name: (got[name], answer) for name, answer in expected.items()}
        differing = {name: pair for name, pair in differing.items() if pair[0] != pair[1]}
        assert not failed
        assert not differing


def launches(traces: Path, rank: int) -> dict[str, list[list[Any]]]:
    """By case, what a rank launched: kind, members, bytes given and got."""
    sizes, case = {}, ""
    found = defaultdict(list)
    for event in files.read_trace(files.trace_path(traces, rank)).events:
        match event:
            case events.Group():
                sizes[event.name] = len(event.ranks)
            case events.Begin(kind="user"):
                case = event.name.removeprefix("case ")
            case events.Collective():
                bytes_ = event.bytes_in, event.bytes_out
                found[case].append([event.kind, sizes[event.group], *bytes_])
            case events.PointToPoint():
                bytes_ = (event.bytes, 0) if event.kind == "send" else (0, event.bytes)
                found[case].append([event.kind, sizes[event.group], *bytes_])
    return found
