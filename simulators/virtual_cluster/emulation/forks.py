"""Processes that a script starts, data-loader workers above all: hosts without a device.

What they compute is real: no dispatch mode answers in place of torch, and tensors without data
that their parent made (large ones of its data set, perhaps) become zeros when they are touched.
"""

from __future__ import annotations

import os
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode
from torch.utils.data._utils import collate

from trainscout.simulators.predictor.io.own_process import end_with_parent
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState


class _Host(TorchDispatchMode):
    """Operations on tensors without data are computed on zeros."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(
            *[_real(value) for value in args],
            **{name: _real(value) for name, value in (kwargs or {}).items()},
        )


def _real(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return _zeros(tuple(value.shape), value.dtype)
    if type(value) in (list, tuple):
        return type(value)([_real(part) for part in value])
    return value


class _Silent:
    """A sink that drops events."""

    def emit(self, event: Any) -> None:
        """Nothing is written."""

    def elapsed_ms(self, start: int, end: int) -> float:
        """Nothing is timed; scripts divide by it."""
        return 1.0

    def close(self) -> None:
        """Nothing is open."""


def install_forks(state: RankState) -> None:
    """Let processes forked from now on be without the emulation. Once per process."""
    ForkingPickler.register(FakeTensor, _pickled)
    by_main = [True]

    def before() -> None:
        by_main[0] = threading.current_thread() is threading.main_thread()

    def after() -> None:
        # The kernel takes the end of the thread that forked for that of the process.
        if by_main[0]:
            end_with_parent()
        enter_host(state)

    os.register_at_fork(before=before, after_in_child=after)


def _pickled(tensor: FakeTensor) -> Any:
    return _zeros, (tuple(tensor.shape), tensor.dtype)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="cpu")


def enter_host(state: RankState) -> None:
    """Make this process a host without a device."""
    state.is_child = True
    state.recorder.sink = _Silent()
    # Modules that prepare data are no steps.
    state.recorder.most_steps = None
    while torch._C._len_torch_dispatch_stack():
        _pop_mode()
    _Host().__enter__()
    collate.default_collate_fn_map[FakeTensor] = _collate


def _collate(batch: Any, *, collate_fn_map: Any = None) -> Any:
    real = [_real(each) for each in batch]
    return collate.collate_tensor_fn(real, collate_fn_map=collate_fn_map)
