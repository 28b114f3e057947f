"""Scripts that start the ranks of a node themselves: only the traced one runs, in this process."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState


class _Ended:
    """What ``spawn`` returns to those who do not wait at once: all has run."""

    processes: tuple[Any, ...] = ()

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Nothing is left to wait for."""
        return True

    def pids(self) -> list[int]:
        """No process was started."""
        return []


def install_spawn(state: RankState) -> None:
    """``torch.multiprocessing``'s spawn calls the function as the traced rank of its node."""

    def start_processes(
        fn: Any,
        args: Any = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
        **_: Any,
    ) -> Any:
        fn(state.rank % max(1, nprocs), *args)
        return None if join else _Ended()

    # The module, which a function of its name hides.
    module: Any = importlib.import_module("torch.multiprocessing.spawn")
    package: Any = torch.multiprocessing
    for place in (module, package):
        place.start_processes = place.spawn = start_processes
