"""Sums, means and questions about all elements, on compact values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from trainscout.simulators.virtual_cluster.emulation.values.apportion import apportion
from trainscout.simulators.virtual_cluster.emulation.values.host import CANNOT, name_of, run
from trainscout.simulators.virtual_cluster.emulation.values.shadow import (
    Categories,
    Grade,
    Kind,
    Known,
)

# Of elements that are all alike, the reduction of one of them, times how many there are or not.
_ADDS_UP = {"sum", "nansum", "count_nonzero"}
_STAYS = {"mean", "amax", "amin", "max", "min", "any", "all"}
REDUCTIONS = _ADDS_UP | _STAYS


def reduction(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensor: torch.Tensor,
    shadow: Known | Categories,
    result: torch.Tensor,
) -> Known | None:
    """The shadow of a reduction of ``tensor``, None if nothing is known of it."""
    name = name_of(func)
    dims = _dims(func, args, kwargs, tensor.dim())
    if isinstance(shadow, Categories):
        return _of_categories(name, dims, tensor, shadow, result)
    if shadow.kind is Kind.RANK:
        return None
    folded = 1
    for dim in dims:
        if shadow.value.shape[dim] == 1:
            folded *= tensor.shape[dim]
    if shadow.kind is Kind.DEFINITE:
        try:
            value = run(func, args, kwargs, lambda _: shadow.value)
        except CANNOT:
            return None
        return Known(value * folded if name in _ADDS_UP else value, shadow.grade)
    keep = result.dim() == tensor.dim()
    mean = shadow.as_mean()
    open_dims = {d for d in range(tensor.dim()) if shadow.value.shape[d] == 1 < tensor.shape[d]}
    settled = open_dims <= set(dims)
    count = 1
    for dim in dims:
        count *= tensor.shape[dim]
    summed = mean.sum(dims, keepdim=keep) * folded if dims else mean
    return _of_sum(name, shadow, summed, count, settled, result.dtype)


def _of_sum(
    name: str, shadow: Known, summed: torch.Tensor, count: int, settled: bool, dtype: torch.dtype
) -> Known | None:
    """From the sums of means over ``count`` elements each. ``settled``: nothing exchangeable
    remains, so sums over many elements are taken for the numbers they are."""
    share = shadow.kind in (Kind.SHARE, Kind.SUPPORT)
    if shadow.kind is (Kind.MEAN if name == "count_nonzero" else Kind.SUPPORT):
        return None
    if name in _ADDS_UP:
        if not settled:
            kind = Kind.SHARE if share and bool((summed <= 1 + 1e-9).all()) else Kind.MEAN
            return Known(summed, shadow.grade, kind)
        if share:
            summed = apportion(summed)
        elif not dtype.is_floating_point:
            summed = apportion(summed) if bool((summed >= 0).all()) else summed.round()
        return Known(summed.to(dtype), shadow.grade)
    if name == "mean":
        kind = Kind.DEFINITE if settled else Kind.MEAN
        return Known((summed / count).to(dtype), shadow.grade, kind)
    if not share or not settled:
        return None
    # Of zeros and ones: whether at least one is 1, or all are.
    some = name in ("any", "amax", "max")
    found = summed >= 0.5 if some else summed >= count - 0.5
    return Known(found.to(dtype), shadow.grade)


def _of_categories(
    name: str, dims: Sequence[int], tensor: torch.Tensor, shadow: Categories, result: torch.Tensor
) -> Known | None:
    if len(dims) < tensor.dim():
        return None
    present = torch.nonzero(shadow.counts(tensor.numel()))
    if name in ("max", "amax"):
        value = present.max()
    elif name in ("min", "amin"):
        value = present.min()
    else:
        return None
    return Known(value.to(result.dtype).reshape((1,) * result.dim()), Grade.EXPECTED)


def _dims(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], ndim: int
) -> tuple[int, ...]:
    given = kwargs.get("dim")
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.name == "dim":
            given = value
    if given is None or (isinstance(given, (list, tuple)) and not given):
        return tuple(range(ndim))
    dims = given if isinstance(given, (list, tuple)) else (given,)
    return tuple(d % ndim if ndim else 0 for d in dims)
