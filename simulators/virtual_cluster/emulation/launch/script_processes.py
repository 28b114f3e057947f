"""Processes and threads that a script starts: workers without a device, ranks, threads with it."""

from __future__ import annotations

import importlib
import multiprocessing.process
import os
import signal
import sys
import threading
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode
from torch.utils.data._utils import collate

from trainscout.simulators.predictor.io.own_process import end_with_parent
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.gaps import gap_left
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.emulation.sink import Untimed
from trainscout.simulators.virtual_cluster.emulation.tensors.device_mode import DeviceMode
from trainscout.simulators.virtual_cluster.traces.events import Group

from .programs import find_program, run_main, set_environment, trained_elsewhere

# Processes that a script starts, data-loader workers above all: hosts without a device, until they
# ask for one.
#
# What they compute is real: no dispatch mode answers in place of torch, and tensors without data
# that their parent made (large ones of its data set, perhaps) become zeros when they are touched.


class _Host(TorchDispatchMode):
    """Operations on tensors without data are computed on zeros. What first wants a device makes
    the process one that may be the rank; where none can be had, that is told at once, for what
    reports at the end is another process."""

    lacked = False

    def __init__(self, state: RankState) -> None:
        super().__init__()
        self._state = state
        # As on a GPU, a process that is forked of one that has used the device cannot use it.
        self._may_have_device = not state.recorder.operations
        self._has_device = False
        self.sink = _Silent()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._has_device:
            return func(*args, **kwargs)
        try:
            named = {name: _real(value) for name, value in kwargs.items()}
            return func(*_real(tuple(args)), **named)
        except Exception as error:
            gap = gap_left(error)
            if gap is None:
                raise
            if self._state.be_rank is None or not self._may_have_device:
                _Host.lacked = True
                stated = f"gap of the emulator in a process of the script: {gap}"
                sys.stderr.write(f"{stated} (only the process that is run has a device)\n")
                raise
        self._take_device()
        return func(*args, **kwargs)

    def _take_device(self) -> None:
        """This mode stays on top, and hands on to that of the device."""
        self._has_device, state = True, self._state
        state.is_child = False
        state.end_rank = state.be_rank(_tell_parent)
        for group in self.sink.groups:
            state.recorder.emit(group)
        DeviceMode(state).__enter__()


def _real(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return _zeros(tuple(value.shape), value.dtype)
    if type(value) in (list, tuple):
        return type(value)([_real(part) for part in value])
    return value


class _Silent(Untimed):
    """A sink that drops events but for groups, which a process may set up before it uses them."""

    def __init__(self) -> None:
        self.groups: list[Group] = []

    def emit(self, event: Any) -> None:
        """Nothing is written."""
        if isinstance(event, Group):
            self.groups.append(event)


def _tell_parent() -> None:
    """It may wait for this process, which has done all that was asked for."""
    if parent := multiprocessing.parent_process():
        os.kill(parent.pid or 0, signal.SIGUSR2)


def install_forks(state: RankState) -> None:
    """Let processes forked from now on be without a device. Once per process. One that fails for
    want of it, or was the rank and has done enough, ends the run: others may wait for it."""
    ForkingPickler.register(FakeTensor, _pickled)

    def end_run(*_: Any) -> None:
        for child in multiprocessing.active_children():
            child.terminate()
        if trained_elsewhere():
            state.recorder.enough()
        process_without_device()

    signal.signal(signal.SIGUSR2, end_run)
    module: Any = multiprocessing.process
    bootstrap = module.BaseProcess._bootstrap

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        code = bootstrap(self, *args, **kwargs)
        if state.end_rank is not None:
            return state.end_rank(code)
        if code and _Host.lacked:
            _tell_parent()
        return code

    module.BaseProcess._bootstrap = run
    by_main = [True]

    def before() -> None:
        by_main[0] = threading.current_thread() is threading.main_thread()

    def after() -> None:
        # The kernel takes the end of the thread that forked for that of the process.
        if by_main[0]:
            end_with_parent()
        enter_host(state)

    os.register_at_fork(before=before, after_in_child=after)


def process_without_device() -> None:
    """A process of the script failed for want of a device.

    Raises:
        InputError: always.
    """
    _Host.lacked = True
    asked, only = "asked for by a process of the script", "only the process that is run has one"
    raise InputError("cuda", asked, only, "a way of the script to train in that")


def _pickled(own: FakeTensor) -> Any:
    device = own._fake_device
    return _zeros if device.type == "cpu" else _received, (tuple(own.shape), own.dtype)


def _received(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """What a process shares of its device's memory."""
    return torch.empty(shape, dtype=dtype, device="cuda")


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="cpu")


def enter_host(state: RankState) -> None:
    """Make this process a host without a device."""
    host = _Host(state)
    state.is_child, state.end_rank = True, None
    state.recorder.restart(host.sink)
    # Modules that prepare data are no steps.
    state.recorder.most_steps = None
    while torch._C._len_torch_dispatch_stack():
        _pop_mode()
    host.__enter__()
    collate.default_collate_fn_map[FakeTensor] = _collate


def _collate(batch: Any, *, collate_fn_map: Any = None) -> Any:
    real = [_real(each) for each in batch]
    return collate.collate_tensor_fn(real, collate_fn_map=collate_fn_map)


# Scripts that start the ranks of a node themselves: only the traced one runs, in this process.


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


def _on_device(value: Any) -> bool:
    tensors = value.parameters() if isinstance(value, torch.nn.Module) else (value,)
    return any(isinstance(each, torch.Tensor) and each.is_cuda for each in tensors)


def install_spawn(state: RankState) -> None:
    """``torch.multiprocessing``'s spawn calls the function as the traced rank of its node.

    So do processes that the script starts one by one before it uses the device, each with a
    function of its own (a job of several ranks: or of a library, in a new interpreter, as whoever
    uses a GPU must) and a number that counts them, or with settings whose ``rank`` does: those are
    ranks, not workers. Whoever is given tensors on the device, or modules of them, is one, too.
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
        before = dist.is_initialized()
        fn(state.rank % max(1, nprocs), *args)
        if dist.is_initialized() and not before:
            # Its groups end with a process.
            dist.destroy_process_group()
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
        arguments = (*self._args, *self._kwargs.values())
        numbers = [each for each in arguments if type(each) is int]
        settings = [vars(each).get("rank") for each in arguments if hasattr(each, "__dict__")]
        method = self._start_method or multiprocessing.get_start_method(allow_none=True)
        package = str(getattr(self._target, "__module__", "")).partition(".")[0]
        own = package == "__main__"
        if method == "spawn" and state.world_size > 1:
            own = package not in ("", "torch", *sys.stdlib_module_names)
        if any(type(each) is int and each == started for each in settings):
            numbers, own = [started], True
        before = own and (started or not state.recorder.operations)
        if numbers[:1] != [started] or not (before or any(map(_on_device, arguments))):
            start(self)
            return
        started += 1
        self._popen = _Ended()
        if numbers[0] == int(os.environ.get("LOCAL_RANK", "0")):
            self.run()

    process.start = start_rank


def launch_patches(state: RankState) -> dict[str, Any]:
    """``torchrun``, what calls it (Accelerate, notebooks), ``deepspeed`` and ``composer`` run the
    traced rank, in place of the processes that they would start."""

    from torch.distributed.elastic.utils import macros

    def launch_agent(config: Any, entrypoint: Any, args: Any, **_: Any) -> Any:
        set_environment(state.world_size, state.rank, state.local_world_size)
        if callable(entrypoint):
            return {state.rank: entrypoint(*args)}
        local_rank = os.environ["LOCAL_RANK"]
        words = [str(each).replace(macros.local_rank, local_rank) for each in args]
        script = next((Path(word) for word in words if word.endswith(".py")), None)
        if script is not None and script.is_file() and b"--local_rank" in script.read_bytes():
            # As torch's first launcher had it, for which the script was written.
            words = [word.replace("--local-rank=", "--local_rank=") for word in words]
        # Python's are an option of its own and then what it runs.
        program = find_program(entrypoint) or entrypoint
        run_main(words[1:] if words[:1] == ["-u"] else [program, *words])
        return {}

    def patch(module: Any) -> None:
        module.launch_agent = launch_agent

    def patch_deepspeed(module: Any) -> None:
        def main(args: Any = None) -> None:
            asked = module.parse_args(args)
            set_environment(state.world_size, state.rank, state.local_world_size)
            own = () if asked.no_local_rank else (f"--local_rank={os.environ['LOCAL_RANK']}",)
            module_option = ("-m",) if asked.module else ()
            run_main([*module_option, asked.user_script, *own, *asked.user_args])

        module.main = main

    def patch_composer(module: Any) -> None:
        def main() -> None:
            set_environment(state.world_size, state.rank, state.local_world_size)
            # Which it asks for where there are several nodes.
            os.environ["NODE_RANK"] = str(state.rank // state.local_world_size)
            asked = module._parse_args()
            module_option = ("-m",) if asked.module_mode else ()
            words = map(os.path.expandvars, map(os.path.expanduser, asked.training_script_args))
            run_main([*module_option, asked.training_script, *words])

        module.main = main

    return {
        "torch.distributed.launcher.api": patch,
        "composer.cli.launcher": patch_composer,
        "deepspeed.launcher.runner": patch_deepspeed,
    }


# Threads of the script see the same device: dispatch modes belong to the thread that enters.


def install_threads(state: RankState) -> None:
    """Let Python threads started from now on use the emulated device. Once per process."""
    run = threading.Thread.run

    def run_on_device(self: threading.Thread) -> None:
        with DeviceMode(state):
            run(self)

    threading.Thread.run = run_on_device  # type: ignore[method-assign]
