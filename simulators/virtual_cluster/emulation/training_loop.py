"""A script's training loop: which phase of a step it is in, its parameters and data loaders."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import lr_scheduler
from torch.optim import optimizer as torch_optimizer
from torch.utils import _foreach_utils
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainscout.simulators.virtual_cluster.traces.events import FORWARD, Parameters

from .memory import DeviceMemory
from .rank_state import RankState
from .recorder import Recorder


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
        part = _own_part(parameter)
        if not isinstance(part, FakeTensor) or part._fake_device.type != "cuda":
            continue
        known = memory.find(part.untyped_storage())
        if known is None or not part.numel() or part.untyped_storage()._cdata in gathered:
            continue
        parts[known.number, part.storage_offset(), part.numel()] = part.itemsize
    if not parts:
        return None
    size = sum(numel * itemsize for (_, _, numel), itemsize in parts.items())
    # Modules are held in no order.
    storages = sorted({storage for storage, _, _ in parts})
    return Parameters(sum(numel for _, _, numel in parts), size, tuple(storages))


def _own_part(parameter: torch.nn.Parameter) -> torch.Tensor:
    """What this rank holds: a DTensor's own data; what DeepSpeed keeps of one it has emptied."""
    part = getattr(parameter, "_local_tensor", parameter)
    return part if part.numel() else getattr(parameter, "ds_tensor", part)


def install_loaders(recorder: Recorder) -> None:
    """Note them, with what they were made of. Once per process."""
    following = _BaseDataLoaderIter.__next__

    def next_batch(self: Any) -> Any:
        try:
            return following(self)
        except StopIteration:
            if not self._num_yielded:
                recorder.empty_loaders[recorder.sites.current()] = _described(self)
            raise

    _BaseDataLoaderIter.__next__ = next_batch


def _described(loader: Any) -> str:
    parts = []
    if hasattr(loader._dataset, "__len__"):
        parts.append(f"{len(loader._dataset):,} samples")
    size = getattr(loader._index_sampler, "batch_size", None)
    if size is not None:
        parts.append(f"batches of {size}")
    if getattr(loader._index_sampler, "drop_last", loader._drop_last):
        parts.append("a last one that is not full is dropped")
    return ", ".join(parts) or type(loader._dataset).__name__


def install_foreach() -> None:
    """Let optimizers treat tensors without data as they treat a GPU's.

    Torch decides by exact type whether multi-tensor kernels may be used, in two places; without
    this, optimizers and gradient clipping would go one parameter at a time, and no one would say.
    """
    for module in (torch_optimizer, _foreach_utils):
        if FakeTensor not in module._foreach_supported_types:
            module._foreach_supported_types.append(FakeTensor)


class UpdatesByHand:
    """Finds the optimizer step of scripts without ``torch.optim``: what first writes a parameter
    that has a gradient, after a backward pass."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._looked = -1
        self._parameters: set[int] = set()

    def wrote(self, places: Iterable[Any]) -> None:
        """An operation is about to write these, outside of any pass."""
        # Gradients come and go with passes; scripts write buffers before the first of them, too.
        if self._looked != self._recorder.phases_entered:
            self._looked = self._recorder.phases_entered
            self._parameters = {
                _own_part(parameter).untyped_storage()._cdata
                for module in list(self._recorder.modules)
                for parameter in module.parameters()
                # ZeRO-3 takes gradients away as they come.
                if parameter.grad is not None or hasattr(parameter, "ds_tensor")
            }
        for place in places:
            for tensor in place if isinstance(place, (list, tuple)) else (place,):
                if tensor is not None and tensor.untyped_storage()._cdata in self._parameters:
                    self._recorder.updated_by_hand()
                    return


def install_phases(state: RankState) -> None:
    """Follow module calls and optimizer steps."""
    recorder = state.recorder
    state.updates = UpdatesByHand(recorder)
    inside = threading.local()
    call = torch.nn.Module.__call__

    def called(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if getattr(inside, "depth", 0):
            return call(self, *args, **kwargs)
        inside.depth = 1
        recorder.modules.add(self)
        recorder.forward_begins()
        try:
            return call(self, *args, **kwargs)
        finally:
            inside.depth = 0

    def step_begins(optimizer: Any, args: Any, kwargs: Any) -> Any:
        state.updates = None
        if not recorder.finished_steps:
            parameters = held_parameters(recorder.modules, state.memory)
            if parameters is not None:
                recorder.emit(parameters)
        # The optimizer itself comes first.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            recorder.optimizer_begins()
            return None

        def closed() -> Any:
            # Forward and backward are in here; what follows is the step.
            loss = closure()
            recorder.optimizer_begins()
            return loss

        if len(args) > 1:
            return (args[0], closed, *args[2:]), kwargs
        return args, {**kwargs, "closure": closed}

    def step_ended(*_: Any) -> None:
        recorder.optimizer_ended()
        # A module that an optimizer steps in is a training loop: what it calls next is a model.
        inside.depth = 0

    scheduled = lr_scheduler.LRScheduler.step

    def rate_changes(self: Any, *args: Any, **kwargs: Any) -> Any:
        # It comes after an update. Zeroth-order methods make theirs of forward passes alone, by
        # assignments that nobody sees.
        alone = state.updates is not None and recorder.phase == FORWARD
        if alone and not getattr(self, "_is_initial", False):
            recorder.updated_by_hand()
        return scheduled(self, *args, **kwargs)

    lr_scheduler.LRScheduler.step = rate_changes
    torch.nn.Module.__call__ = called
    torch_optimizer.register_optimizer_step_pre_hook(step_begins)
    torch_optimizer.register_optimizer_step_post_hook(step_ended)
