"""Operations whose results are as long as the data says: masked_select, nonzero, unique, ..."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from . import plain
from .call import Call, for_real, signature
from .defaults import FOLLOWED_ELEMENTS, OUTLIER_SHARE
from .routing import assumed, ones_in
from .shadow import Categories, Grade, Kind, Known, Shadow, total

Get = Callable[[torch.Tensor], Shadow | None]

_MASKS = (torch.bool, torch.uint8)
_OUTLIERS = ("int8_vectorwise_quant", "int8_double_quant", "int8_mixed_scaled_mm")


def is_data_dependent(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the size of this call's result depends on data."""
    declared = signature(func)
    # Composites that come whole, as in inference mode, are asked for their parts.
    if not declared.has_dynamic_size or func._can_decompose():
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


def decide_size(call: Call) -> Decision:
    """How long the result of a data-dependent operation is: exact where the data is known,
    expected otherwise; ``ASSUMED_SHARE`` of what could be selected where nothing is known."""
    func, args, get = call.func, call.args, call.get
    exact = _run_for_real(call)
    if exact is not None:
        return exact
    name = call.name
    tensor = args[0]
    if name == "masked_select":
        shape = torch.broadcast_shapes(tensor.shape, args[1].shape)
        count, grade = ones_in(args[1], get(args[1]))
        count = count * shape.numel() // max(args[1].numel(), 1)
        return Decision(lambda: tensor.new_empty((count,)), count, grade, [_alike(get(tensor))])
    if name == "nonzero":
        count, grade = ones_in(tensor, get(tensor))
        places = (count, tensor.dim())
        return Decision(lambda: tensor.new_empty(places, dtype=torch.int64), count, grade, [None])
    if name == "index":
        return _index(func, args, get)
    if name == "_ctc_loss":
        return _ctc(args)
    shadow = get(tensor)
    whole = isinstance(shadow, Categories) and not shadow.lowest
    if name == "bincount" and whole and call.argument("weights") is None:
        assert isinstance(shadow, Categories)
        counts = shadow.counts(tensor.numel())
        least = int(call.argument("minlength", 0))
        length = max(int(torch.nonzero(counts).max()) + 1, least)
        counts = torch.nn.functional.pad(counts, (0, length - len(counts)))[:length]
        known = Known(counts, Grade.EXPECTED)
        return Decision(
            lambda: tensor.new_empty((length,), dtype=torch.int64), length, known.grade, [known]
        )
    if name in ("_unique2", "_unique"):
        choices = shadow if isinstance(shadow, Categories) else _zeros_and_ones(tensor, shadow)
        if choices is not None:
            return _unique(func, tensor, choices)
    unsummable = isinstance(shadow, Known) and shadow.kind in (Kind.SUPPORT, Kind.RANK)
    if name == "repeat_interleave" and isinstance(shadow, Known) and not unsummable:
        count = round(total(shadow, tensor.shape))
        return Decision(
            lambda: tensor.new_empty((count,), dtype=torch.int64), count, shadow.grade, [None]
        )
    return _nothing_known(call)


def _run_for_real(call: Call) -> Decision | None:
    tensors = call.tensors
    if any(tensor.numel() > FOLLOWED_ELEMENTS for tensor in tensors):
        return None
    computed = for_real(call, [(tensor, call.get(tensor)) for tensor in tensors])
    if computed is None:
        return None
    made, _, grade = computed
    outcome = [made] if isinstance(made, torch.Tensor) else list(made)

    def make() -> Any:
        fakes = [call.args[0].new_empty(value.shape, dtype=value.dtype) for value in outcome]
        return fakes[0] if isinstance(made, torch.Tensor) else tuple(fakes)

    return Decision(make, len(outcome[0]), grade, [Known(value, grade) for value in outcome])


def own_size(func: OpOverload, args: Sequence[Any], first: torch.Tensor) -> int:
    """How much a library's own operation is taken to find, of which only it knows how its size
    follows: the assumed share of its first tensor's rows, or what is known of it."""
    if signature(func).name in _OUTLIERS:
        # Columns that bitsandbytes leaves to 16 bits, or those that it was given.
        columns = args[5] if len(args) > 5 else None
        share = math.ceil(OUTLIER_SHARE * first.shape[-1])
        return share if columns is None else int(columns.numel())
    return assumed(int(first.shape[0]))


def _index(func: OpOverload, args: Sequence[Any], get: Get) -> Decision:
    tensor, indices = args[0], list(args[1])
    grade = Grade.EXACT
    counts: dict[int, int] = {}
    for position, index in enumerate(indices):
        if index is not None and index.dtype in _MASKS:
            counts[position], worth = ones_in(index, get(index))
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


def _ctc(args: Sequence[Any]) -> Decision:
    """A loss a sequence, and for the backward pass a number a step and place in its target with
    blanks around (aten/src/ATen/native/cuda/LossCTC.cu)."""
    scores, targets, _, lengths = args[:4]
    steps, batch = scores.shape[:2]
    longest = targets.shape[-1] if isinstance(lengths, torch.Tensor) else max(lengths, default=0)
    places = (batch, steps, 2 * int(longest) + 1)
    return Decision(
        lambda: (scores.new_empty((batch,)), scores.new_empty(places)),
        batch,
        Grade.EXACT,
        [None, None],
    )


def _zeros_and_ones(tensor: torch.Tensor, shadow: Shadow | None) -> Categories | None:
    """Flags, and what is known to be 0 or 1: how many are which."""
    share = isinstance(shadow, Known) and shadow.kind is Kind.SHARE
    if not share and (shadow is not None or tensor.dtype is not torch.bool):
        return None
    ones = ones_in(tensor, shadow)[0] / max(tensor.numel(), 1)
    return Categories(2, plain.tensor([1 - ones, ones], dtype=torch.float64))


def _unique(func: OpOverload, tensor: torch.Tensor, shadow: Categories) -> Decision:
    counts = shadow.counts(tensor.numel())
    present = torch.nonzero(counts).reshape(-1)
    shadows = [
        Known(shadow.numbers()[present].to(tensor.dtype), Grade.EXPECTED),
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
    """Of some of the elements, whichever they are, in one dimension or more; what a mask leaves of
    choices and none are the choices."""
    return shadow.chosen() if isinstance(shadow, Categories) else None


def _nothing_known(call: Call) -> Decision:
    """Repeats that are 1 in the mean, as many bins as asked for, or the assumed share of the
    elements as distinct ones."""
    name, tensor, args = call.name, call.args[0], call.args
    number = len(call.func._schema.returns)
    dtypes = [tensor.dtype if number > 1 else torch.int64, torch.int64, torch.int64]
    if name == "repeat_interleave":
        length = tensor.numel()
        shapes = [(length,)]
    elif name == "bincount":
        length = max(1, int(call.argument("minlength", 0)))
        shapes = [(length,)]
    elif name == "linalg_lstsq":
        # CUDA takes the rank to be full: residuals where there are more rows, no rank, no values.
        *batch, rows, length = tensor.shape
        sides = args[1].shape[-1]
        shapes = [(*batch, length, sides), (*batch, sides) if rows > length else (0,), (0,), (0,)]
        dtypes = [tensor.dtype, tensor.dtype, torch.int64, tensor.dtype]
    elif "unique" not in name:
        raise NotImplementedError(f"how long the result of {name} is")
    else:
        # unique and its kin: values, where each element is among them, how often each comes.
        dim = args[1] if name == "unique_dim" else None
        length = assumed(tensor.numel() if dim is None else tensor.shape[dim])
        values = [length] if dim is None else list(tensor.shape)
        inverse = tensor.shape if dim is None else (tensor.shape[dim],)
        if dim is not None:
            values[dim] = length
        shapes = [tuple(values), tuple(inverse), (length,)][:number]

    def make() -> Any:
        made = [
            tensor.new_empty(shape, dtype=dtype)
            for shape, dtype in zip(shapes, dtypes, strict=False)
        ]
        return made[0] if number == 1 else tuple(made)

    return Decision(make, length, Grade.EXPECTED, [None] * len(shapes))
