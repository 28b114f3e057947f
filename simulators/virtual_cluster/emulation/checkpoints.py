"""Saving and loading: tensors without data are saved as shapes and loaded without data again."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from trainscout.simulators.virtual_cluster.emulation.fake_tensors import wrap
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState


def install_checkpoints(state: RankState) -> None:
    """Let ``torch.save`` and ``torch.load`` work. Once per process."""
    rebuild = torch._utils._rebuild_meta_tensor_no_storage

    @functools.wraps(rebuild)
    def rebuild_without_data(dtype: Any, size: Any, stride: Any, requires_grad: bool) -> Any:
        meta = rebuild(dtype, size, stride, False)
        made = wrap(state.dataless, meta, torch.device("cpu"))
        return made.requires_grad_(requires_grad)

    def reduce(self: FakeTensor, protocol: Any) -> Any:
        shape = (self.dtype, tuple(self.shape), tuple(self.stride()), self.requires_grad)
        return (torch._utils._rebuild_meta_tensor_no_storage, shape)

    torch._utils._rebuild_meta_tensor_no_storage = rebuild_without_data
    FakeTensor.__reduce_ex__ = reduce
    torch.load = _load(torch.load)


def _load(original: Any) -> Any:
    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Contents are read into host memory, which is real; the device takes copies.
        named = isinstance(map_location, (str, torch.device, int))
        device = torch.device(map_location) if named else None
        loaded = original(f, lambda storage, location: storage, *args, **kwargs)
        if device is None or device.type != "cuda":
            return loaded
        return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), loaded)

    return load
