"""Views, copies and concatenations: elements move, their values stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from . import plain
from .call import CANNOT, Call
from .defaults import FOLLOWED_ELEMENTS
from .shadow import Categories, Grade, Kind, Known, Shadow, compact

# Same elements in the same shape, in another type, place or memory format perhaps.
COPIES = {"clone", "_to_copy", "contiguous", "lift_fresh_copy", "detach_copy", "alias_copy"}
# Reshapes that are no views.
RESHAPES = {"_unsafe_view", "_reshape_copy"}
# Views by memory address, which compact values do not share with the tensor.
_BY_ADDRESS = {"as_strided", "_reshape_alias"}
# Views that read what is there otherwise.
_TURNED = {"_conj", "_neg_view"}


def of_copy(shadow: Shadow, result: torch.Tensor) -> Shadow | None:
    """After a change of type at most."""
    if not isinstance(shadow, Known):
        return (
            shadow if isinstance(shadow, Categories) and result.dtype is not torch.bool else None
        )
    if shadow.kind is Kind.DEFINITE:
        return Known(shadow.value.to(result.dtype), shadow.grade)
    if shadow.kind is Kind.MEAN:
        if result.dtype is torch.bool:
            return None
        wide = result.dtype if result.dtype.is_floating_point else torch.float64
        return Known(shadow.value.to(wide), shadow.grade, Kind.MEAN)
    if shadow.kind is Kind.SUPPORT and result.dtype is torch.bool:
        return Known(shadow.value, shadow.grade, Kind.SHARE, shadow.nested)
    return shadow


def of_view(call: Call, source: torch.Tensor, shadow: Shadow) -> Sequence[Shadow | None]:
    """The shadows of views of ``source``, one per result."""
    results = call.results
    if not isinstance(shadow, Known):
        return [shadow] * len(results)
    if shadow.kind is Kind.RANK:
        return [None] * len(results)
    if any(r.dtype is not source.dtype for r in results):
        return [None] * len(results)
    if shadow.value.numel() == 1 and call.name not in _TURNED:
        return [_with(shadow, shadow.value.reshape((1,) * r.dim())) for r in results]
    if call.name in _BY_ADDRESS:
        return [None] * len(results)
    try:
        made = call.on_host(lambda _: shadow.value.expand(source.shape))
    except CANNOT:
        made = _flattened(call, source, shadow)
    if made is None:
        return [None] * len(results)
    values = [made] if isinstance(made, torch.Tensor) else list(made)
    return [_with(shadow, compact(value)) for value in values]


def _flattened(call: Call, source: torch.Tensor, shadow: Known) -> Any:
    """A reshape that no view of compact values can express."""
    if source.numel() <= FOLLOWED_ELEMENTS:
        try:
            return call.on_host(lambda _: shadow.value.expand(source.shape).clone())
        except CANNOT:
            return None
    if shadow.kind is Kind.DEFINITE:
        return None
    # Which element has which expectation is lost; their mean is not.
    mean = shadow.value.mean().expand(source.shape)
    try:
        return call.on_host(lambda _: mean)
    except CANNOT:
        return None


def _with(shadow: Known, value: torch.Tensor) -> Known:
    return Known(value, shadow.grade, shadow.kind, shadow.nested)


def of_cat(tensors: Sequence[torch.Tensor], shadows: Sequence[Shadow], dim: int) -> Shadow | None:
    """Of the tensors one behind the other along ``dim``."""
    if all(isinstance(s, Categories) for s in shadows):
        return _cat_categories(tensors, [s for s in shadows if isinstance(s, Categories)])
    known = [s for s in shadows if isinstance(s, Known)]
    if len(known) < len(shadows) or any(s.kind in (Kind.SUPPORT, Kind.RANK) for s in known):
        return None
    grade = min(s.grade for s in known)
    kinds = {s.kind for s in known}
    if all(s.kind is Kind.SHARE or s.value.dtype is torch.bool for s in known):
        kinds -= {Kind.DEFINITE} if Kind.SHARE in kinds else set()
    kind = kinds.pop() if len(kinds) == 1 else Kind.MEAN
    nested = all(s.nested for s in known)
    across = torch.broadcast_shapes(*(_without(s.value, dim) for s in known))
    lengths = [t.shape[dim] for t in tensors]
    values = [s.value.to(known[0].value.dtype) for s in known]
    if all(v.shape[dim] == 1 and torch.equal(v, values[0]) for v in values):
        return Known(values[0], grade, kind, nested)
    if sum(lengths) * max(1, across.numel()) <= FOLLOWED_ELEMENTS:
        wide = [
            v.expand(*across[:dim], length, *across[dim + 1 :])
            for v, length in zip(values, lengths, strict=True)
        ]
        return Known(torch.cat(wide, dim), grade, kind, nested)
    if kind is Kind.DEFINITE:
        return None
    weighted = [
        s.as_mean().mean(dim, keepdim=True).expand(across) * length
        for s, length in zip(known, lengths, strict=True)
    ]
    return Known(torch.stack(weighted).sum(0) / sum(lengths), grade, kind, nested)


def _without(value: torch.Tensor, dim: int) -> tuple[int, ...]:
    return (*value.shape[:dim], 1, *value.shape[dim + 1 :])


def _cat_categories(
    tensors: Sequence[torch.Tensor], shadows: Sequence[Categories]
) -> Categories | None:
    if len({(s.number, s.lowest) for s in shadows}) > 1:
        return None
    if all(s is shadows[0] for s in shadows):
        return shadows[0]
    elements = sum(t.numel() for t in tensors)
    weighted = [
        s.all_shares() * (t.numel() / elements) for t, s in zip(tensors, shadows, strict=True)
    ]
    return replace(shadows[0], shares=torch.stack(weighted).sum(0), nested=False)


def filled(result: torch.Tensor, value: bool | int | float, grade: Grade) -> Known:
    """The same number everywhere."""
    made = plain.full((1,) * result.dim(), value, dtype=result.dtype)
    return Known(made, grade)
