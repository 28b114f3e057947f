"""Operations whose results are as long as the data says: masked_select, nonzero, unique, ..."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.values.defaults import FOLLOWED_ELEMENTS
from trainscout.simulators.virtual_cluster.emulation.values.host import (
    CANNOT,
    name_of,
    run,
    signature,
    tensors_in,
)
from trainscout.simulators.virtual_cluster.emulation.values.routing import ones_in
from trainscout.simulators.virtual_cluster.emulation.values.shadow import (
    Categories,
    Grade,
    Kind,
    Known,
    Shadow,
    total,
)

Get = Callable[[torch.Tensor], Shadow | None]

_MASKS = (torch.bool, torch.uint8)
# What to write instead, where the size cannot be expected.
_INSTEAD = {
    "masked_select": "torch.where with a result of fixed size, or a mask made from known values",
    "nonzero": "torch.nonzero_static(..., size=N), torch.where with three arguments, or a mask "
    "made from known values",
    "index": "torch.where in place of indexing with a mask, or a mask made from known values",
    "repeat_interleave": "repeat_interleave(..., output_size=N), or repeats from known values",
    "bincount": "torch.histc, whose number of bins is given",
}


class UnknownSizeError(InputError):
    """The size of a result depends on data that does not exist, and no size is expected."""


def is_data_dependent(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the size of this call's result depends on data."""
    declared = signature(func)
    if not declared.has_dynamic_size:
        return False
    if declared.name == "index":
        return any(i is not None and i.dtype in _MASKS for i in args[1])
    return declared.name != "repeat_interleave" or kwargs.get("output_size") is None


@dataclass(frozen=True)
class Decision:
    """The size that was decided and what it is worth; ``make`` makes the fake result, under the
    fake mode; ``shadows`` are those of its tensors."""

    make: Callable[[], Any]
    size: int
    grade: Grade
    shadows: Sequence[Shadow | None]


def decide_size(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], get: Get
) -> Decision:
    """How long the result of a data-dependent operation is.

    Raises:
        UnknownSizeError: when no expectation of the size exists.
    """
    exact = _run_for_real(func, args, kwargs, get)
    if exact is not None:
        return exact
    name = name_of(func)
    tensor = args[0]
    if name == "masked_select":
        shape = torch.broadcast_shapes(tensor.shape, args[1].shape)
        count, grade = _ones(func, args[1], get)
        count = count * shape.numel() // max(args[1].numel(), 1)
        return Decision(lambda: tensor.new_empty((count,)), count, grade, [_alike(get(tensor))])
    if name in ("nonzero", "argwhere"):
        count, grade = _ones(func, tensor, get)
        places = (count, tensor.dim())
        return Decision(lambda: tensor.new_empty(places, dtype=torch.int64), count, grade, [None])
    if name == "index":
        return _index(func, args, get)
    shadow = get(tensor)
    if name == "bincount" and isinstance(shadow, Categories) and _unweighted(args, kwargs):
        counts = shadow.counts(tensor.numel())
        least = int(args[2] if len(args) > 2 else kwargs.get("minlength", 0))
        length = max(int(torch.nonzero(counts).max()) + 1, least)
        counts = torch.nn.functional.pad(counts, (0, length - len(counts)))[:length]
        known = Known(counts, Grade.EXPECTED)
        return Decision(
            lambda: tensor.new_empty((length,), dtype=torch.int64), length, known.grade, [known]
        )
    if name in ("_unique2", "_unique") and isinstance(shadow, Categories):
        return _unique(func, tensor, shadow)
    unsummable = isinstance(shadow, Known) and shadow.kind in (Kind.SUPPORT, Kind.RANK)
    if name == "repeat_interleave" and isinstance(shadow, Known) and not unsummable:
        count = round(total(shadow, tensor.shape))
        return Decision(
            lambda: tensor.new_empty((count,), dtype=torch.int64), count, shadow.grade, [None]
        )
    raise _unknown(func, tensor)


def _run_for_real(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], get: Get
) -> Decision | None:
    values: dict[int, torch.Tensor] = {}
    grade = Grade.EXACT
    for tensor in tensors_in((*args, *kwargs.values())):
        shadow = get(tensor)
        if not isinstance(shadow, Known) or shadow.kind is not Kind.DEFINITE:
            return None
        if tensor.numel() > FOLLOWED_ELEMENTS:
            return None
        values[id(tensor)] = shadow.value.expand(tensor.shape)
        grade = min(grade, shadow.grade)
    try:
        made = run(func, args, kwargs, lambda t: values[id(t)])
    except CANNOT:
        return None
    outcome = [made] if isinstance(made, torch.Tensor) else list(made)

    def make() -> Any:
        fakes = [args[0].new_empty(value.shape, dtype=value.dtype) for value in outcome]
        return fakes[0] if isinstance(made, torch.Tensor) else tuple(fakes)

    return Decision(make, len(outcome[0]), grade, [Known(value, grade) for value in outcome])


def _ones(func: OpOverload, mask: torch.Tensor, get: Get) -> tuple[int, Grade]:
    found = ones_in(get(mask), mask.shape)
    if found is None:
        raise _unknown(func, mask)
    return found


def _index(func: OpOverload, args: Sequence[Any], get: Get) -> Decision:
    tensor, indices = args[0], list(args[1])
    grade = Grade.EXACT
    counts: dict[int, int] = {}
    for position, index in enumerate(indices):
        if index is not None and index.dtype in _MASKS:
            counts[position], worth = _ones(func, index, get)
            grade = min(grade, worth)

    def make() -> Any:
        places: list[torch.Tensor | None] = []
        for position, index in enumerate(indices):
            if position not in counts:
                places.append(index)
                continue
            # A mask stands for one list of positions per dimension it covers.
            places += [
                tensor.new_empty((counts[position],), dtype=torch.int64) for _ in index.shape
            ]
        return func(tensor, places)

    return Decision(make, max(counts.values()), grade, [_alike(get(tensor))])


def _unweighted(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return (args[1] if len(args) > 1 else kwargs.get("weights")) is None


def _unique(func: OpOverload, tensor: torch.Tensor, shadow: Categories) -> Decision:
    counts = shadow.counts(tensor.numel())
    present = torch.nonzero(counts).reshape(-1)
    shadows = [
        Known(present.to(tensor.dtype), Grade.EXPECTED),
        None,
        Known(counts[present], Grade.EXPECTED),
    ]
    number = len(func._schema.returns)

    def make() -> Any:
        made = (
            tensor.new_empty(present.shape),
            tensor.new_empty(tensor.shape, dtype=torch.int64),
            tensor.new_empty(present.shape, dtype=torch.int64),
        )
        return made[:number]

    return Decision(make, len(present), Grade.EXPECTED, shadows[:number])


def _alike(shadow: Shadow | None) -> Shadow | None:
    """Of some of the elements, whichever they are, in one dimension or more."""
    return shadow if isinstance(shadow, Categories) else None


def _unknown(func: OpOverload, tensor: torch.Tensor) -> UnknownSizeError:
    name = name_of(func)
    shape = ", ".join(map(str, tensor.shape))
    return UnknownSizeError(
        "size",
        f"{func}({tensor.dtype} [{shape}])",
        "depends on data that does not exist on an emulated device, and nothing is expected of it",
        _INSTEAD.get(name, "an operation whose result has a size that follows from shapes"),
    )
