"""Threads of the script see the same device: dispatch modes belong to the thread that enters."""

from __future__ import annotations

import threading

from trainscout.simulators.virtual_cluster.emulation.device_mode import DeviceMode
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState


def install_threads(state: RankState) -> None:
    """Let Python threads started from now on use the emulated device. Once per process."""
    run = threading.Thread.run

    def run_on_device(self: threading.Thread) -> None:
        with DeviceMode(state):
            run(self)

    threading.Thread.run = run_on_device  # type: ignore[method-assign]
