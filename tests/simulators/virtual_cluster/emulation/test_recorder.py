"""Where a step ends."""

from __future__ import annotations

import pytest

from trainscout.simulators.virtual_cluster.emulation import ListSink
from trainscout.simulators.virtual_cluster.emulation.recorder import EnoughStepsError, Recorder
from trainscout.simulators.virtual_cluster.traces.events import FORWARD


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
