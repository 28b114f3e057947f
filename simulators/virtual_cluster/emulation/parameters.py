"""Which parameters a rank holds, as its first optimizer step begins."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch._subclasses.fake_tensor import FakeTensor

from trainscout.simulators.virtual_cluster.emulation.memory import DeviceMemory
from trainscout.simulators.virtual_cluster.traces.events import Parameters


def held_parameters(modules: Iterable[torch.nn.Module], memory: DeviceMemory) -> Parameters | None:
    """The modules' parameters on the device, shards as this rank's part; None if none.

    What several parameters share (a copy of a module that follows another's data) counts once;
    what FSDP gathers of its shards for a pass (bitsandbytes makes parameters of it) does not.

    ``memory`` numbers the storages.
    """
    found = {id(each): each for module in list(modules) for each in module.parameters()}
    full = [getattr(each, "_full_param_padded", None) for each in found.values()]
    gathered = {each.untyped_storage()._cdata for each in full if each is not None}
    parts: dict[tuple[int, int, int], int] = {}
    for parameter in found.values():
        # A DTensor's own data is its part on this rank; DeepSpeed keeps the part of a parameter
        # that it has emptied beside it.
        part = getattr(parameter, "_local_tensor", parameter)
        if not part.numel():
            part = getattr(parameter, "ds_tensor", part)
        if not isinstance(part, FakeTensor) or part._fake_device.type != "cuda":
            continue
        known = memory.find(part.untyped_storage())
        if known is None or not part.numel() or part.untyped_storage()._cdata in gathered:
            continue
        parts[known.number, part.storage_offset(), part.numel()] = part.itemsize
    if not parts:
        return None
    size = sum(numel * itemsize for (_, _, numel), itemsize in parts.items())
    storages = dict.fromkeys(storage for storage, _, _ in parts)
    return Parameters(sum(numel for _, _, numel in parts), size, tuple(storages))
