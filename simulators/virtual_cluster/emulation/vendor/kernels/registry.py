"""Where emulated kernels are registered with torch's dispatcher."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trainscout.simulators.virtual_cluster.traces.vocabulary import KERNELS, NAMESPACE

_library = torch.library.Library(NAMESPACE, "DEF")
for _kernel in KERNELS.values():
    _library.define(_kernel.schema)

# What these make looks like arguments of theirs, by position.
_LIKE = {
    "activation_bwd": (1,),
    "fused_softmax_fwd": (0,),
    "layer_norm_bwd": (1, 2, 2),
    "moe_aux_scores_bwd": (0,),
    "moe_router_bwd": (0,),
    "rms_norm_bwd": (1, 2),
    "rope_bwd": (0,),
    "rope_fwd": (0,),
    "swizzle_scales": (0,),
}


def shapes_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function as what makes the outputs of the kernel of its name."""
    _library.impl(function.__name__, function, "Meta")
    return function


def kernel(name: str) -> Callable[..., Any]:
    """The dispatcher's callable of an emulated kernel; arguments positional, in schema order."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default  # type: ignore[no-any-return]


def torch_dtype(name: str) -> torch.dtype:
    """torch's type of a name such as ``bfloat16``."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """The name the schemas take, without the prefix."""
    return str(dtype).removeprefix("torch.")


def empty(like: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of this shape, of the type of ``like`` unless said otherwise."""
    return torch.empty(tuple(shape), dtype=dtype or like.dtype, device=like.device)


def rows_of(tensor: Tensor) -> int:
    """Elements of all dimensions but the last."""
    return math.prod(tensor.shape[:-1])


def _nothing(*arguments: Any) -> None:
    """What only writes its arguments."""


def _like(*places: int) -> Callable[..., Any]:
    def made(*arguments: Any) -> Any:
        outputs = tuple(empty(arguments[place], arguments[place].shape) for place in places)
        return outputs if len(outputs) > 1 else outputs[0]

    return made


for _name, _places in _LIKE.items():
    _library.impl(_name, _like(*_places), "Meta")
for _kernel in KERNELS.values():
    if _kernel.schema.endswith("-> ()"):
        _library.impl(_kernel.name, _nothing, "Meta")
