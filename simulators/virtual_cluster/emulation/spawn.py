"""Scripts that start the ranks of a node themselves: only the traced one runs, in this process."""

from __future__ import annotations

import importlib
import multiprocessing.process
import os
from typing import Any

import torch

from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState


class _Ended:
    """What those see who started processes and do not wait at once: all has run."""

    processes: tuple[Any, ...] = ()
    returncode = 0

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Nothing is left to wait for."""
        return True

    def pids(self) -> list[int]:
        """No process was started."""
        return []

    def poll(self) -> int:
        """It ended well."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """It ended well."""
        return self.returncode


def _on_device(given: Any) -> bool:
    tensors = given.parameters() if isinstance(given, torch.nn.Module) else (given,)
    return any(isinstance(each, torch.Tensor) and each.is_cuda for each in tensors)


def install_spawn(state: RankState) -> None:
    """``torch.multiprocessing``'s spawn calls the function as the traced rank of its node.

    So do processes that the script starts one by one before it uses the device, each with a
    function of its own and a number that counts them: those are ranks, not workers. Whoever is
    given tensors on the device, or modules of them, uses it and is a rank, too.
    """

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

    process: Any = multiprocessing.process.BaseProcess
    start = process.start
    started = 0

    def start_rank(self: Any) -> None:
        nonlocal started
        given = (*self._args, *self._kwargs.values())
        numbers = [each for each in given if type(each) is int]
        own = getattr(self._target, "__module__", None) == "__main__"
        before = own and (started or not state.recorder.operations)
        if numbers[:1] != [started] or not (before or any(map(_on_device, given))):
            start(self)
            return
        started += 1
        self._popen = _Ended()
        if numbers[0] == int(os.environ.get("LOCAL_RANK", "0")):
            self.run()

    process.start = start_rank
