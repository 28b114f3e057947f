"""``trainscout trace replay`` on traces in a folder."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.in_process import command
from tests.simulators.virtual_cluster.traces.megatron_like import Layout, megatron_trace
from trainscout.simulators.virtual_cluster.traces.files import trace_path, write_trace

main = command("trace", "replay")

LAYOUT = Layout(tp=2, dp=2, pp=2, micro_batches=4, layers=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("traces")
    for rank in (0, 1, 4, 5):
        write_trace(trace_path(made, rank), megatron_trace(LAYOUT, rank, steps=2))
    return made


def test_chakra_traces_of_the_job_take_as_long(folder: Path, tmp_path: Path) -> None:
    chakra, found = tmp_path / "chakra", {}
    assert command("trace")(["export", str(folder), "--chakra", str(chakra)]) == 0
    for traces in (folder, chakra):
        as_json = tmp_path / "step.json"
        assert main([str(traces), "--cluster", "h800_96", "--json", str(as_json)]) == 0
        found[traces] = json.loads(as_json.read_text())["step_time_s"]
    # CPU time is in whole microseconds there, and so are waits.
    assert found[chakra] == pytest.approx(found[folder], rel=0.02)


def test_it_shows_and_writes_a_prediction(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_json, timeline = tmp_path / "step.json", tmp_path / "step.trace.json.gz"
    options = [
        *("--cluster", "h800_96", "--framework", "megatron_core", "--model-flops", "1e12"),
        *("--host", "traced"),
        *("--json", str(as_json), "--perfetto", str(timeline)),
        *("--alloc-conf", "expandable_segments:True"),
    ]
    assert main([str(folder), *options]) == 0
    shown = capsys.readouterr().out
    assert "usable); outside PyTorch: CUDA's context, NCCL's buffers" in shown
    assert "if other work slowed this machine" in " ".join(shown.split())
    content = json.loads(as_json.read_text())
    assert f"Step time {1e3 * content['step_time_s']:.2f} ms on 8 GPUs, MFU" in shown
    assert "tp communication" in shown
    assert content["ranks"][0]["memory"]["headroom_bytes"] > 0
    assert sum(content["breakdown_s"].values()) == pytest.approx(content["step_time_s"])
    events = json.loads(gzip.decompress(timeline.read_bytes()))
    events = events["traceEvents"] if isinstance(events, dict) else events
    assert sum(event.get("name") == "aten.mm.default" for event in events) > 20
    reserved = [each["args"] for each in events if each["name"] == "reserved memory"]
    assert reserved
    assert all(value % 2**20 == 0 for each in reserved for value in each.values())


def test_declared_hosts_are_slower_than_the_drivers_pace(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = []
    for host in ("traced", "declared"):
        path = tmp_path / f"{host}.json"
        options = ["--cluster", "h800_96", "--framework", "megatron_core", "--host", host]
        assert main([str(folder), *options, "--json", str(path)]) == 0
        times.append(json.loads(path.read_text())["step_time_s"])
    capsys.readouterr()
    assert times[0] < times[1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--cluster", "h800_69"], "did you mean 'h800_96'?"),
        (["--cluster", "h800_96", "--gpu", "h80"], "did you mean 'h800'?"),
        (["--cluster", "h800_96", "--framework", "megatron"], "--framework=megatron"),
        (["--cluster", "h800_96", "--alloc-conf", "nothing"], "PYTORCH_CUDA_ALLOC_CONF"),
        (["--cluster", "h800_96", "--model-flops", "-1"], "--model-flops"),
        (["--cluster", "h800_96", "--network", "fluid"], "--network=fluid"),
        (["--cluster", "h800_96", "--topology", "leaf_spine"], "--network flow"),
        (["--cluster", "h800_96", "--network", "flow", "--topology", "leaf"], "--topology=leaf"),
        (["--cluster", "h800_96", "--json", "/no/such/place"], "cannot be written"),
        (["--cluster", "a40_8", "--gpu", "v100_32"], "bf16"),
    ],
)
def test_wrong_input_is_refused(
    folder: Path, options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(folder), *options]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.out == ""


def test_a_folder_without_traces_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--cluster", "h800_96"]) == 2
    assert str(tmp_path) in capsys.readouterr().err
