"""One stage of a pipeline on its own: what others would tell it of sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulators.virtual_cluster.emulation.sections import emulate
from trainscout.simulators.virtual_cluster.emulation import ListSink
from trainscout.simulators.virtual_cluster.emulation.recorder import Recorder
from trainscout.simulators.virtual_cluster.emulation.report import describe_gap
from trainscout.simulators.virtual_cluster.traces.events import PointToPoint

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("script", ["pipeline_stages.py", "sizes_ahead.py", "traced_pipeline.py"])
def test_gradients_have_the_sizes_of_what_was_sent(tmp_path: Path, script: str) -> None:
    run = emulate(tmp_path, script, "--world-size", 2, check=True)
    assert run.code == 0, run.output
    moved = {
        kind: [
            event.bytes
            for event in run.trace.events
            if isinstance(event, PointToPoint) and event.kind == kind and event.dtype == "float32"
        ]
        for kind in ("send", "recv")
    }
    assert moved["recv"]
    assert set(moved["recv"]) == set(moved["send"])


@pytest.mark.parametrize("script", ["pipeline_stages.py", "sizes_ahead.py"])
def test_a_later_stage_that_is_told_nothing_is_a_gap(tmp_path: Path, script: str) -> None:
    run = emulate(tmp_path, script, "--world-size", 2, "--rank", 1)
    assert run.code == 3, run.output
    (gap,) = [line for line in run.output.splitlines() if line.startswith("gap of the emulator")]
    assert "trainscout live" in gap
    assert script in gap


def test_what_a_device_or_the_script_refuses_is_none_whatever_was_told_before() -> None:
    recorder = Recorder(ListSink(), (), lambda: -1)
    recorder.invented("item", 1, "item: was sent by a rank that does not run (recv of group 0)")
    for error in (torch.cuda.OutOfMemoryError("CUDA out of memory"), ModuleNotFoundError("wandb")):
        assert describe_gap(error, recorder) is None
    assert "trainscout live" in str(describe_gap(RuntimeError("shapes"), recorder))
