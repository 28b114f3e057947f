"""Forward, backward and optimizer: which phase of a step the rank is in."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer as torch_optimizer
from torch.utils import _foreach_utils

from trainscout.simulators.virtual_cluster.emulation.parameters import held_parameters
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.emulation.recorder import Recorder


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
                parameter.untyped_storage()._cdata
                for module in list(self._recorder.modules)
                for parameter in module.parameters()
                if parameter.grad is not None
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

    torch.nn.Module.__call__ = called
    torch_optimizer.register_optimizer_step_pre_hook(step_begins)
    torch_optimizer.register_optimizer_step_post_hook(step_ended)
