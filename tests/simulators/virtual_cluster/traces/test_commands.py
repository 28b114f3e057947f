"""``trainscout trace``: what is printed, written, refused, and the exit codes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.in_process import command
from tests.simulators.virtual_cluster.traces.megatron_like import Layout, megatron_trace
from tests.simulators.virtual_cluster.traces.test_kineto import PROFILE
from trainscout.simulators.virtual_cluster.traces.chakra.read import read_chakra
from trainscout.simulators.virtual_cluster.traces.command_tables import (
    LaunchSummary,
    PhaseSummary,
    summarise,
)
from trainscout.simulators.virtual_cluster.traces.events import (
    Alloc,
    Collective,
    Event,
    Free,
    Group,
    Header,
    HostGap,
    Op,
    Phase,
    PointToPoint,
    TensorSpec,
    Trace,
    ValueRead,
    Violation,
)
from trainscout.simulators.virtual_cluster.traces.files import trace_path, write_trace
from trainscout.simulators.virtual_cluster.traces.perfetto import EventTimes, write_perfetto

main = command("trace")

LAYOUT = Layout(tp=2, dp=2, pp=2, micro_batches=2)
STAGES = (0, 4)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    directory = tmp_path / "traces"
    directory.mkdir()
    for rank in STAGES:
        write_trace(trace_path(directory, rank), megatron_trace(LAYOUT, rank))
    return directory


def break_rank(directory: Path, rank: int) -> None:
    trace = megatron_trace(LAYOUT, rank)
    events = [
        dataclasses.replace(event, bytes=7) if isinstance(event, PointToPoint) else event
        for event in trace.events
    ]
    write_trace(trace_path(directory, rank), Trace(trace.header, tuple(events)))


def test_summaries_count_by_phase_name_and_communicator() -> None:
    tensor = TensorSpec("bfloat16", (8, 4), 1)
    group = Group("g", "TENSOR_MODEL_PARALLEL_GROUP", (0, 1))
    reduce = Collective("all_reduce", "g", 0, 64, 64, "bfloat16", 0, 1)
    product = Op("aten.mul.Tensor", (tensor,), (tensor,), 0)
    events: tuple[Event, ...] = (
        *(group, Alloc(1, 512, 0), Phase("forward", 0), product, HostGap(0.25), reduce),
        *(Alloc(2, 100, 0), Free(2), Phase("optimizer", 0)),
        *(ValueRead("item", 1.0, "invented", 0), dataclasses.replace(reduce, sequence=1)),
        Violation("wrong stream", "read before it was written"),
    )
    found = summarise(Trace(Header(2, 0, 8, "h100", 1, (), {}), events))
    assert found.phases == {
        ("setup", 0): PhaseSummary(peak_bytes=512),
        ("forward", 0): PhaseSummary(1, 128, 1, 64, 0.25, 612),
        ("optimizer", 0): PhaseSummary(0, 0, 1, 64, 0.0, 512),
    }
    assert found.operations == {"aten.mul.Tensor": LaunchSummary(1, 128)}
    key = ("all_reduce", "TENSOR_MODEL_PARALLEL_GROUP", 2)
    assert found.communications == {key: LaunchSummary(2, 128)}
    assert found.reads == {"invented": 1}
    assert found.violations == ("read before it was written",)


def test_show_prints_a_rank(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(trace_path(traces, 4))]) == 0
    printed = capsys.readouterr().out
    assert "Rank 4 of 8 on h800: train.py" in printed
    assert "aten.mm.default" in printed
    assert "reduce_scatter TENSOR_MODEL_PARALLEL_GROUP of 2" in printed


def test_collate_prints_classes_and_exits_by_what_fits(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collate", str(traces)]) == 0
    printed = capsys.readouterr().out
    assert "8 ranks in 2 classes" in printed
    assert "[4, 5, 6, 7]" in printed
    assert "MISMATCH" not in printed
    break_rank(traces, 4)
    assert main(["collate", str(traces)]) == 4
    printed = capsys.readouterr().out
    assert "bytes differs: 1048576 of rank 0 at train.py:10 in step (send); 7 of rank 4" in printed


def test_export_writes_perfetto_and_chakra(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main(["export", str(traces), "--perfetto", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == set(STAGES)
    one = trace_path(traces, 0)
    assert main(["export", str(one), "--perfetto", str(out), "--ranks", "0"]) == 0
    assert {event["pid"] for event in json.loads(out.read_text())["traceEvents"]} == {0}
    for ranks, expected in ((None, STAGES), ("all", range(8)), ("1,5-6", (1, 5, 6))):
        folder = tmp_path / f"chakra-{ranks}"
        option = [] if ranks is None else ["--ranks", ranks]
        assert main(["export", str(traces), "--chakra", str(folder), *option]) == 0
        assert [trace.header.rank for trace in read_chakra(folder)] == list(expected)


def test_kineto_prints_time_by_class_beside_a_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, predicted = tmp_path / "profile.json", tmp_path / "predicted.json.gz"
    profile.write_text(json.dumps(PROFILE))
    assert main(["kineto", str(profile)]) == 0
    printed = capsys.readouterr().out
    assert "NVIDIA H800, rank 8 of 64: 4 kernels, 1 steps" in printed
    assert "exposed 0.050 ms" in printed
    group = Group("g", "TENSOR_MODEL_PARALLEL_GROUP", (8, 9))
    reduce = Collective("all_reduce", "g", 0, 8, 8, "float32", 0, 1)
    send = PointToPoint("send", "g", 9, 0, 8, "float32", 0, 2)
    steps = [
        (Phase("forward", step), Op("aten.mm.default", (), (), 0), reduce_of)
        for step, reduce_of in enumerate((reduce, send))
    ]
    events = (group, *steps[0], *steps[1])
    trace = Trace(Header(64, 8, 8, "h800", 1, (), {}), events)
    starts = np.arange(len(events)) * 1e-3
    write_perfetto(predicted, [trace], {8: EventTimes(starts, starts + 180e-6)})
    asked = ["kineto", str(profile), "--predicted", str(predicted)]
    assert main([*asked, "--rank", "8"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["gemm", "0.200", "ms", "0.180", "ms", "-10.0%"] in rows
    assert ["collective", "0.100", "ms", "0.090", "ms", "-10.0%"] in rows
    assert ["point_to_point", "0.000", "ms", "0.090", "ms"] in rows
    assert main([*asked, "--rank", "3"]) == 2
    assert "shows no rank 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["show", "MISSING"], "cannot be read"),
        (["collate", "MISSING"], "is no directory"),
        (["collate", "TRACES", "--tolerance", "2"], "--tolerance=2.0: is out of range"),
        (["export", "TRACES", "--perfetto", "TRACES"], "--perfetto"),
        (["export", "TRACES", "--perfetto", "MISSING/t.json"], "cannot be written"),
        (["export", "TRACES", "--perfetto", "OUT", "--ranks", "5"], "5: was not traced"),
        (["export", "TRACES", "--chakra", "OUT", "--ranks", "99"], "is out of range"),
        (["kineto", "MISSING"], "cannot be read"),
    ],
)
def test_wrong_input_is_refused_and_nothing_written(
    traces: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    problem: str,
) -> None:
    places = {"TRACES": str(traces), "MISSING": str(tmp_path / "missing")}
    places["MISSING/t.json"] = str(tmp_path / "missing" / "t.json")
    places["OUT"] = str(tmp_path / "out")
    assert main([places.get(each, each) for each in arguments]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_loads_nothing_heavy(traces: Path) -> None:
    code = (
        "import sys; from trainscout.cli import main; "
        f"main(['trace', 'collate', {str(traces)!r}]); "
        "heavy = {'torch', 'pandas', 'numba', 'mlflow', 'google.protobuf'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
