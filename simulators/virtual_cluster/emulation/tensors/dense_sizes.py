"""Sizes of what operations return, of those asked most at sizes that grow.

There a meta kernel costs more than all else that is done for an operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .operations import Operation

Sizes = list[tuple[int, ...]] | None
Rule = Callable[[Sequence[torch.Tensor], Any], Sizes]
_aten = torch.ops.aten


def strides_of(size: Sequence[int]) -> tuple[int, ...]:
    """Of a tensor of this size without gaps."""
    made, step = [], 1
    for length in reversed(size):
        made.append(step)
        step *= max(length, 1)
    return tuple(reversed(made))


def _dense(tensors: Sequence[torch.Tensor]) -> bool:
    return all(tensor.stride() == strides_of(tensor.shape) for tensor in tensors)


def _of_pointwise(tensors: Sequence[torch.Tensor], args: Any) -> Sizes:
    if not _dense(tensors):
        return None
    size: list[int] = []
    for tensor in tensors:
        own = tensor.shape
        size = [1] * (len(own) - len(size)) + size
        for place, length in enumerate(own, start=len(size) - len(own)):
            if length != 1:
                if size[place] not in (1, length):
                    return None
                size[place] = length
    return [tuple(size)]


def _of_product(tensors: Sequence[torch.Tensor], args: Any) -> Sizes:
    bias, left, right = tensors
    rows, columns = left.shape[0], right.shape[1]
    fits = left.shape[1] == right.shape[0] and bias.shape in ((columns,), (rows, columns))
    return [(rows, columns)] if fits else None


def _of_norm(tensors: Sequence[torch.Tensor], args: Any) -> Sizes:
    shape, normalized = tuple(tensors[0].shape), tuple(args[1])
    outer = len(shape) - len(normalized)
    fits = all(each.shape == normalized for each in tensors[1:]) and shape[outer:] == normalized
    kept = shape[:outer] + (1,) * len(normalized)
    return [shape, kept, kept] if fits and _dense(tensors) else None


def _of_cat(tensors: Sequence[torch.Tensor], args: Any) -> Sizes:
    first = tensors[0].shape
    dim = (args[1] if len(args) > 1 else 0) % max(len(first), 1)
    rest = [(*each.shape[:dim], *each.shape[dim + 1 :]) for each in tensors]
    if any(each != rest[0] for each in rest) or not all(each.numel() for each in tensors):
        return None
    if not _dense(tensors):
        return None
    if len(first) > 3 and (first[1] == 1 or first[2:].numel() == 1):
        # Their channels may as well be last.
        return None
    return [(*first[:dim], sum(each.shape[dim] for each in tensors), *first[dim + 1 :])]


_RULES: dict[Any, Rule] = {
    _aten.addmm.default: _of_product,
    _aten.native_layer_norm.default: _of_norm,
    _aten.cat.default: _of_cat,
}


def rule_of(operation: Operation, func: Any) -> Rule | None:
    """What says, from the tensors and arguments of a call of ``func``, the sizes of all that it
    returns, without gaps; None of operations, or of a call, whose meta kernel has to say."""
    return _of_pointwise if operation.pointwise else _RULES.get(func)
