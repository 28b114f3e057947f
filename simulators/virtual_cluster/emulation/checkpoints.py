"""Saving and loading: tensors without data are saved as shapes and loaded without data again."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from trainscout.simulators.virtual_cluster.emulation.fake_tensors import wrap
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState


def install_checkpoints(state: RankState) -> None:
    """Let ``torch.save`` and ``torch.load`` work. Once per process."""
    rebuild = torch._utils._rebuild_meta_tensor_no_storage
    placed = _Placed()

    @functools.wraps(rebuild)
    def rebuild_without_data(
        dtype: Any, size: Any, stride: Any, requires_grad: bool, saved_on: str = "cpu"
    ) -> Any:
        meta = rebuild(dtype, size, stride, False)
        made: torch.Tensor = wrap(state.dataless, meta, torch.device("cpu"))
        device = placed.device(saved_on)
        if device.type == "cuda":
            made = made.to(device)
        return made.requires_grad_(requires_grad)

    def reduce(self: FakeTensor, protocol: Any) -> Any:
        shape = (self.dtype, tuple(self.shape), tuple(self.stride()), self.requires_grad)
        made_by = torch._utils._rebuild_meta_tensor_no_storage
        return (made_by, (*shape, str(self.fake_device)))

    torch._utils._rebuild_meta_tensor_no_storage = rebuild_without_data
    FakeTensor.__reduce_ex__ = reduce
    torch.load = _load(torch.load, placed)


class _Placed:
    """Where the file being read has its tensors put, by ``torch.load``'s ``map_location``."""

    def __init__(self) -> None:
        self.map_location: Any = None

    def device(self, saved_on: str) -> torch.device:
        chosen = self.map_location
        if isinstance(chosen, dict):
            chosen = chosen.get(saved_on, saved_on)
        elif callable(chosen):
            storage = chosen(_Storage(torch.device("cpu")), saved_on)
            chosen = None if storage is None else storage.device
        return torch.device(saved_on if chosen is None else chosen)


@dataclass(frozen=True)
class _Storage:
    """What a function given as ``map_location`` is asked to move: nothing but its place."""

    device: torch.device

    def cpu(self) -> _Storage:
        return _Storage(torch.device("cpu"))

    def cuda(self, device: Any = None, **kwargs: Any) -> _Storage:
        if device is None:
            device = torch.cuda.current_device()
        return _Storage(torch.device("cuda", device) if isinstance(device, int) else device)


def _load(original: Any, placed: _Placed) -> Any:
    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Contents are read into host memory, which is real; the device takes copies.
        placed.map_location = map_location
        loaded = original(f, lambda storage, location: storage, *args, **kwargs)
        device = placed.device("cpu")
        if device.type != "cuda":
            return loaded
        return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), loaded)

    return load
