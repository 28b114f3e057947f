"""Tensors and other arguments as a trace holds them."""

from __future__ import annotations

import enum
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from trainscout.simulators.virtual_cluster.emulation.memory import DeviceMemory
from trainscout.simulators.virtual_cluster.traces.events import Argument, TensorSpec

DTYPES = {
    value: name
    for name, value in sorted(vars(torch).items(), reverse=True)
    if isinstance(value, torch.dtype) and str(value) == f"torch.{name}"
}
_PLAIN = (int, float, str, bool, type(None))


def spec_of(tensor: torch.Tensor, storage: int | None) -> TensorSpec:
    """Type, shape and storage number of a tensor; strides only when it is not contiguous."""
    strides = None if tensor.is_contiguous() else tuple(tensor.stride())
    return TensorSpec(DTYPES[tensor.dtype], tuple(tensor.shape), storage, strides)


def as_argument(value: Any, memory: DeviceMemory) -> Argument:
    """Anything an operation is called with, as a trace holds it."""
    kind = type(value)
    if kind in _PLAIN:
        return value  # type: ignore[no-any-return]
    if isinstance(value, torch.Tensor):
        known = None
        if isinstance(value, FakeTensor) and value._fake_device.type == "cuda":
            known = memory.find(value.untyped_storage())
        return spec_of(value, None if known is None else known.number)
    if isinstance(value, (list, tuple)):
        return tuple([as_argument(part, memory) for part in value])
    if isinstance(value, enum.Enum):
        return str(value.name)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    if isinstance(value, complex):
        return (value.real, value.imag)
    return str(value)
