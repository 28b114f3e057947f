"""Where a step ends, and a trace."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.simulators.virtual_cluster.emulation.sections import emulate_text
from trainscout.simulators.virtual_cluster.emulation import ListSink
from trainscout.simulators.virtual_cluster.emulation.recorder import EnoughStepsError, Recorder
from trainscout.simulators.virtual_cluster.emulation.sink import FileSink
from trainscout.simulators.virtual_cluster.emulation.unknown_values import listed
from trainscout.simulators.virtual_cluster.traces import events
from trainscout.simulators.virtual_cluster.traces.events import (
    BACKWARD,
    FORWARD,
    Free,
    Header,
    Phase,
    Synchronise,
)
from trainscout.simulators.virtual_cluster.traces.files import (
    WRITE_LINES,
    TraceWriter,
    read_trace,
)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_stage_that_waits_for_another_step_is_ended_too(steps: int) -> None:
    recorder = Recorder(ListSink(), (), lambda: -1)
    recorder.most_steps = steps
    for _ in range(steps):
        # Stages receive before their forward pass.
        recorder.next_step_begins()
        recorder.enter_phase(FORWARD)
        recorder.optimizer_begins()
        recorder.optimizer_ended()
    with pytest.raises(EnoughStepsError):
        recorder.next_step_begins()
    assert recorder.has_enough


def test_the_loss_of_a_model_that_nobody_calls_begins_a_step(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = """
import threading
import torch
table = torch.nn.Parameter(torch.randn(100, 64, device="cuda"))
optimizer = torch.optim.SGD([table], lr=0.1)
averaged = table.detach().clone()
def save():
    (table * 2).to("cpu")
for step in range(5):
    loss = torch.nn.functional.softplus(table @ table.t()).mean()
    loss.backward()
    optimizer.step()
    saving = threading.Thread(target=save)
    saving.start()
    saving.join()
    averaged.lerp_(table.detach(), 0.1)
    print("step", step)
"""
    run = emulate_text(tmp_path, "loss.py", text, "--world-size", "1", "--steps", "3")
    assert [line for line in run.output.splitlines() if line.startswith("step ")][-1] == "step 2"
    # What follows an update is of its own step.
    steps: dict[str, list[tuple[str, int]]] = {}
    phase, step = events.SETUP, 0
    for event in run.trace.events:
        if isinstance(event, events.Phase):
            phase, step = event.phase, event.step
        elif isinstance(event, events.Op) and phase != events.SETUP:
            steps.setdefault(event.name, []).append((phase, step))
    assert steps["aten.softplus.default"] == [(FORWARD, 1), (FORWARD, 2)]
    assert steps["aten.lerp_.Scalar"] == [(events.OTHER, step) for step in range(3)]


def test_a_thread_beside_the_one_that_trains_makes_nobody_wait() -> None:
    # As one that writes a checkpoint: when it waits is chance, in what phase too.
    sink = ListSink()
    tasks = threading.local()
    recorder = Recorder(sink, (), lambda: getattr(tasks, "number", -1))
    waited = Synchronise("device", None)
    recorder.emit(waited)
    recorder.forward_begins()
    tasks.number = 3
    recorder.enter()

    def beside() -> None:
        recorder.enter()
        recorder.emit(waited)
        recorder.leave()

    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    recorder.emit(waited)
    found = [event for event in sink.events if isinstance(event, Phase | Synchronise)]
    assert found == [waited, Phase(FORWARD, 0), Phase(BACKWARD, 0), waited]


def test_what_the_end_of_the_process_frees_is_in_no_trace(tmp_path: Path) -> None:
    sink = FileSink(TraceWriter(tmp_path / "t", Header(1, 0, 1, "h100", 80 << 30, (), {})))
    sink.emit(Free(1))
    sink.close()
    for number in range(WRITE_LINES):
        sink.emit(Free(number))
    assert read_trace(tmp_path / "t").events == (Free(1),)


def test_values_that_only_set_up_went_on_by_are_listed_together() -> None:
    recorder = Recorder(ListSink(), (), lambda: -1)
    for _ in range(3):
        recorder.invented("item", False, None)
    recorder.invented("tolist", (1.0, 2.0), None)
    recorder.invented("aten.nonzero", (5,), None)
    recorder.enter_phase(FORWARD)
    for _ in range(9):
        recorder.invented("item", 1.0, "item: a loss")
    recorder.invented("item", True, None)
    recorder.assumed("aten.masked_select", 50, None)
    for number in range(3):
        recorder.invented(f"other {number}", 1.0, None)
    # Of two ranks that ran the same script.
    lines = listed(2 * recorder.unknown_values(), 2)
    assert [line.partition(" at /")[0] for line in lines] == [
        "2 x aten.masked_select = 50 (expected)",
        "2 x aten.nonzero = (5,)",
        "2 x item = True",
        "18 x item = 1.0",
        "2 x other 0 = 1.0",
        "and numbers at 2 more places",
        "8 flags and numbers in set-up at 2 places, 6",
    ]
    assert lines[3].endswith("; item: a loss")
