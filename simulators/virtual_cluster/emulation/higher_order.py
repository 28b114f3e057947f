"""Operations that take functions: flex attention is a kernel of its own on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops.utils import registered_hop_fake_fns
from torch._subclasses.fake_tensor import FakeTensor

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.memory import DeviceStorage
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.emulation.stream_uses import Extent, extent_of
from trainscout.simulators.virtual_cluster.emulation.tensor_specs import as_argument, spec_of
from trainscout.simulators.virtual_cluster.traces.events import Argument, Op


def higher_order(state: RankState, func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operation on functions, written down as one operation.

    Raises:
        InputError: for one whose shapes torch cannot tell without running it.
    """
    rule = registered_hop_fake_fns.get(func)
    if rule is None:
        raise InputError(
            "operation", func.name(), "cannot be emulated", registered_hop_fake_fns_names()
        )
    state.recorder.launching()
    with state.dataless:
        result = rule(*args, **kwargs)
    stream = state.shim.stream()
    read = [part for tensor in _tensors((args, kwargs)) if (part := _part(state, tensor))]
    written = []
    outputs = []
    for tensor in _tensors(result):
        if isinstance(tensor, FakeTensor) and tensor._fake_device.type == "cuda":
            storage = state.memory.track(tensor.untyped_storage(), stream)
            written.append((storage, extent_of(tensor)))
            outputs.append(spec_of(tensor, storage.number))
    for parts in (read, written):
        state.memory.materialise(parts)
    state.memory.used(read, written, stream)
    inputs = [_argument(value, state) for value in args]
    inputs += [(name, _argument(value, state)) for name, value in kwargs.items()]
    state.recorder.operations += 1
    site = state.recorder.sites.current()
    name = f"higher_order.{func.name()}"
    state.recorder.emit(Op(name, tuple(inputs), tuple(outputs), stream, site))
    return result


def registered_hop_fake_fns_names() -> list[str]:
    """Names of the operations that can be emulated."""
    return [func.name() for func in registered_hop_fake_fns]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if torch.is_tensor(leaf)]


def _part(state: RankState, tensor: torch.Tensor) -> tuple[DeviceStorage, Extent] | None:
    return state.memory.part(tensor) if isinstance(tensor, FakeTensor) else None


def _argument(value: Any, state: RankState) -> Argument:
    if isinstance(value, dict):
        return tuple([(str(name), _argument(part, state)) for name, part in value.items()])
    if isinstance(value, (list, tuple)):
        return tuple([_argument(part, state) for part in value])
    if callable(value) and not isinstance(value, torch.Tensor):
        return str(getattr(value, "__qualname__", type(value).__name__))
    return as_argument(value, state.memory)
