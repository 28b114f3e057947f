"""From what is known of an operation's inputs to what is known of its results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from . import plain
from .call import Call, Rule, in_full, unless_known
from .defaults import FINITE, GRID_ELEMENTS, SOUND
from .elementwise import BOTH, EITHER, REDUCTIONS, elementwise, reduction
from .routing import ROUTING_RULES, VENDOR_RULES, assumed, best, share_of
from .shadow import Categories, Grade, Kind, Known, Missing, Shadow, downgraded
from .shapes import COPIES, RESHAPES, filled, of_cat, of_copy, of_view

# Element by element, though torch does not tag them so.
_POINTWISE = {
    *("floor_divide", "floor_divide_", "masked_fill_", "where", "isclose"),
    *("__and__", "__or__", "__xor__", "__iand__", "__ior__"),
}


def propagate(call: Call) -> Sequence[Shadow | None]:
    """Shadows of ``call.results``, None where nothing is known."""
    name = call.name
    rule = RULES.get(name) or VENDOR_RULES.get(name)
    if name in ("max", "min") and len(call.results) == 2:
        rule = best
    if name in _MASKED and _is_unknown_mask(call):
        # Flags nobody knows are down: what they would select stays as it was.
        kept = call.get(call.args[0])
        if isinstance(kept, Known) and kept.kind is Kind.DEFINITE:
            return [downgraded(kept, Grade.INVENTED)]
    if rule is not None:
        return rule(call)
    tensors = call.tensors
    pairs = [(t, call.get(t)) for t in tensors]
    known = [(t, s) for t, s in pairs if s is not None and not isinstance(s, Missing)]
    if name in ("sum", "count_nonzero") and not known and (mask := _assumed_mask(tensors[0])):
        known = [(tensors[0], mask)]
        pairs = [*known]
    nothing: list[Shadow | None] = [None] * len(call.results)
    if name in BOTH | EITHER and 0 < len(known) < len(pairs):
        return [_decided(known, name in EITHER, call.results[0])]
    if name in SOUND and not known and call.results[0].numel() == 1:
        return [filled(call.results[0], SOUND[name], Grade.INVENTED)]
    if not known or len(known) < len(pairs) or call.signature.is_random:
        return nothing
    if (call.signature.is_pointwise or name in _POINTWISE) and len(call.results) == 1:
        return [elementwise(call, known)]
    if name in REDUCTIONS and len(call.results) == 1 and len(known) == 1:
        tensor, shadow = known[0]
        if isinstance(shadow, (Known, Categories)):
            return [reduction(call, tensor, shadow)]
    if name in RESHAPES:
        tensor, shadow = known[0]
        return of_view(call, tensor, shadow)
    return in_full(call, known) or nothing


def _assumed_mask(flags: torch.Tensor) -> Known | None:
    """Of flags that nobody knows: as many are up as they would select."""
    if flags.dtype is not torch.bool or flags.numel() < 2:
        return None
    return share_of(flags, assumed(flags.numel()))


_FACTORIES = (
    *("arange", "eye", "linspace", "logspace", "scalar_tensor"),
    *("tril_indices", "triu_indices"),
)
_MASKED = {"index_put", "index_put_", "masked_fill", "masked_fill_", "masked_scatter_"}


def _is_unknown_mask(call: Call) -> bool:
    masks = call.args[1] if isinstance(call.args[1], (list, tuple)) else [call.args[1]]
    flags = [each for each in masks if each is not None and each.dtype is torch.bool]
    return any(call.get(each) is None for each in flags)


def _decided(
    known: Sequence[tuple[torch.Tensor, Shadow]], answer: bool, result: torch.Tensor
) -> Shadow | None:
    """Of flags, some unknown: one that is down everywhere decides all that it is combined with,
    or one that is up."""
    whole = not (result.dtype.is_floating_point or result.dtype.is_complex)
    if result.dtype is torch.bool or (whole and not answer):
        for _, shadow in known:
            if not isinstance(shadow, Known) or shadow.kind is not Kind.DEFINITE:
                continue
            if bool((shadow.value.bool() == answer).all()):
                return filled(result, answer, shadow.grade)
    return None


def _constant(value: float | None) -> Rule:
    """Factories of one number: zeros, ones, full, fill_."""

    def rule(call: Call) -> Sequence[Shadow | None]:
        result = call.results[0]
        number: Any = value
        if number is None:
            number = call.argument("fill_value", call.argument("value"))
        if isinstance(number, torch.Tensor):
            shadow = call.get(number)
            if not isinstance(shadow, Known) or shadow.kind is not Kind.DEFINITE:
                return [None]
            made = shadow.value.reshape((1,) * result.dim()).to(result.dtype)
            return [Known(made, shadow.grade)]
        return [filled(result, number, Grade.EXACT)]

    return rule


def _factory(call: Call) -> Sequence[Shadow | None]:
    """Whatever numbers: arange, eye, linspace; those that are not whole up to a grid's."""
    result = call.results[0]
    if result.dtype.is_floating_point and result.numel() > GRID_ELEMENTS:
        return [None]
    return in_full(call, [(call.results[0], filled(call.results[0], 0, Grade.EXACT))]) or [None]


def _copy(call: Call) -> Sequence[Shadow | None]:
    shadow = call.get(call.args[0])
    if shadow is None and call.results[0].dtype is not torch.bool:
        # Flags that become numbers are to be counted or multiplied by.
        shadow = _assumed_mask(call.args[0])
    return [None if shadow is None else of_copy(shadow, call.results[0])]


def _copy_into(call: Call) -> Sequence[Shadow | None]:
    shadow = call.get(call.args[1])
    result = call.results[0]
    if shadow is None:
        return [None]
    copied = of_copy(shadow, result)
    if isinstance(copied, Known):
        missing = result.dim() - copied.value.dim()
        if missing < 0:
            return [None]
        value = copied.value.reshape((1,) * missing + tuple(copied.value.shape))
        copied = Known(value, copied.grade, copied.kind, copied.nested)
    return [copied]


def _finite(answer: bool) -> Rule:
    def rule(call: Call) -> Sequence[Shadow | None]:
        shadow = call.get(call.args[0])
        if isinstance(shadow, Known) and shadow.kind is Kind.DEFINITE:
            return [_as_finite(elementwise(call, [(call.args[0], shadow)]), [shadow])]
        return [filled(call.results[0], answer, Grade.EXPECTED)]

    return rule


def _as_asserted(call: Call) -> Sequence[Shadow | None]:
    """``_is_all_true``, by which torch checks its arguments, as whether samples may be drawn of a
    distribution: what is only known on average is as it should be."""
    shadow = call.get(call.args[0])
    if isinstance(shadow, Known) and shadow.grade is Grade.EXACT:
        return in_full(call, [(call.args[0], shadow)]) or [None]
    return [filled(call.results[0], SOUND[call.name], Grade.INVENTED)]


def _as_finite(answer: Shadow | None, asked: Iterable[Shadow]) -> Shadow | None:
    """Whether numbers that nobody knows are finite is as expected, though what they are is
    invented."""
    if not isinstance(answer, Known) or answer.grade is not Grade.INVENTED:
        return answer
    finite = all(isinstance(each, Known) and bool(each.value.isfinite().all()) for each in asked)
    return replace(answer, grade=Grade.EXPECTED) if finite else answer


def _compare(call: Call) -> Sequence[Shadow | None]:
    """eq and ne: ``isfinite`` and ``isnan`` are made of comparisons with itself and infinity."""
    one, other = call.args[0], call.args[1]
    pairs = [(t, call.get(t)) for t in call.args if isinstance(t, torch.Tensor)]
    known = [(t, s) for t, s in pairs if s is not None and not isinstance(s, Missing)]
    infinite = isinstance(other, float) and math.isinf(other)
    if len(known) == len(pairs):
        made = elementwise(call, known)
        asks = other is one or infinite
        return [_as_finite(made, [shadow for _, shadow in known]) if asks else made]
    same = call.name.startswith("eq")
    if other is one or infinite:
        return [filled(call.results[0], same is (other is one), Grade.EXPECTED)]
    if len(pairs) == 2 and (number := _different(call.results[0].shape, pairs)):
        share = 1 / number if same else 1 - 1 / number
        value = plain.full((1,) * call.results[0].dim(), share, dtype=torch.float64)
        return [Known(value, Grade.EXPECTED, Kind.SHARE)]
    # Flags are 0 or 1, which says nothing of either.
    many = [t for t, _ in pairs if t.dtype is not torch.bool and t.numel() > 1]
    by_one = len(many) == 2 and many[0].shape == many[1].shape
    whole = len(many) == 1 and not many[0].is_floating_point()
    if (not same and by_one) or (whole and isinstance(other, int) and (not same or other < 0)):
        # Numbers seldom meet one by one: weights and what they were before a reset, the two ends
        # of edges, of which few are loops, or tokens that were generated and the one that pads.
        # Nor are any the negative number that marks what is left out: -100 among labels.
        return [filled(call.results[0], not same, Grade.EXPECTED)]
    return [None]


def _different(
    shape: torch.Size, pairs: Sequence[tuple[torch.Tensor, Shadow | None]]
) -> int | None:
    """Of how many different numbers one is sought, which is taken to be among them once.

    Different are those known to be, and fractions: a schedule in which a step is looked up.
    """
    (listed, shadow), (sought, _) = sorted(pairs, key=lambda pair: -pair[0].numel())
    if sought.numel() != 1 or listed.numel() != shape.numel() or listed.dim() != 1:
        return None
    if isinstance(shadow, Known) and shadow.kind is Kind.DEFINITE:
        return listed.numel() if len(torch.unique(shadow.value)) == listed.numel() else None
    return listed.numel() if listed.is_floating_point() else None


def _unscale(call: Call) -> Sequence[Shadow | None]:
    """Gradients are finite: the flag stays as it is. What they are divided by is known."""
    gradients, flag = call.args[0], call.args[1]
    shadow = call.get(flag)
    value = (
        shadow.value
        if isinstance(shadow, Known) and shadow.kind is Kind.DEFINITE
        else plain.zeros((1,) * flag.dim(), dtype=flag.dtype)
    )
    return [None] * len(gradients) + [Known(value, Grade.INVENTED)]


def _cat(call: Call) -> Sequence[Shadow | None]:
    # An empty tensor of one dimension may stand among any others.
    tensors = [t for t in call.args[0] if t.numel()]
    shadows = [call.get(t) for t in tensors]
    if any(shadows):
        shadows = [s or _assumed_mask(t) for t, s in zip(tensors, shadows, strict=True)]
    if not tensors or any(s is None for s in shadows):
        return [None]
    if call.name == "stack":
        dim = call.dim(call.results[0], 0)
        lifted = []
        for shadow in shadows:
            if isinstance(shadow, Known):
                value = shadow.value.unsqueeze(dim)
                shadow = Known(value, shadow.grade, shadow.kind, shadow.nested)
            lifted.append(shadow)
        ones = [t.unsqueeze(dim) for t in (plain.empty(t.shape, device="meta") for t in tensors)]
        return [of_cat(ones, [s for s in lifted if s is not None], dim)]
    return [of_cat(tensors, [s for s in shadows if s is not None], call.dim(tensors[0], 0))]


@unless_known
def _pad(call: Call) -> Sequence[Shadow | None]:
    """constant_pad_nd: the same number before and behind, as a sentinel at the end of each row."""
    source, widths = call.args[0], list(call.argument("pad"))
    made: Shadow | None = call.get(source) or _assumed_mask(source)
    shape = list(source.shape)
    for dim in range(len(shape) - 1, len(shape) - 1 - len(widths) // 2, -1):
        before, behind, *widths = widths
        if not isinstance(made, Known) or min(before, behind) < 0:
            return [None]
        number = plain.full((1,) * len(shape), call.argument("value", 0), dtype=made.value.dtype)
        end = Known(number, Grade.EXACT, made.kind)
        parts = [(n, s) for n, s in ((before, end), (shape[dim], made), (behind, end)) if n]
        shapes = [(*shape[:dim], length, *shape[dim + 1 :]) for length, _ in parts]
        tensors = [plain.empty(each, device="meta") for each in shapes]
        made = of_cat(tensors, [known for _, known in parts], dim)
        shape[dim] += before + behind
    return [made]


@unless_known
def _pick(call: Call) -> Sequence[Shadow | None]:
    """index, index_select, gather, masked_select of values that are alike wherever one looks."""
    shadow = call.get(call.args[0])
    result = call.results[0]
    if isinstance(shadow, Categories):
        return [shadow]
    if not isinstance(shadow, Known):
        return [None]
    if shadow.value.numel() == 1:
        value = shadow.value.reshape((1,) * result.dim())
        return [Known(value, shadow.grade, shadow.kind, shadow.nested)]
    numbers = shadow.value
    fewer = numbers.dim() == result.dim() == 1 and result.numel() <= numbers.numel()
    if fewer and shadow.kind is Kind.DEFINITE and result.dtype is torch.int64:
        # Evenly among all: as many of each graph stay as pooling keeps of its nodes.
        places = plain.arange(result.numel()) * numbers.numel() // result.numel()
        return [Known(numbers[places], Grade.EXPECTED)]
    return [None]


def _nothing(call: Call) -> Sequence[Shadow | None]:
    return [None] * len(call.results)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros", "zero_"), _constant(0)),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), _constant(1)),
    **dict.fromkeys(("full", "full_like", "new_full", "fill_", "fill"), _constant(None)),
    **dict.fromkeys(_FACTORIES, _factory),
    **dict.fromkeys(COPIES, _copy),
    "copy_": _copy_into,
    "copy": _copy_into,
    **{name: _finite(answer) for name, answer in FINITE.items()},
    **dict.fromkeys(("eq", "ne"), _compare),
    "_is_all_true": _as_asserted,
    "_amp_foreach_non_finite_check_and_unscale_": _unscale,
    **dict.fromkeys(("cat", "stack"), _cat),
    "constant_pad_nd": _pad,
    **dict.fromkeys(("index", "index_select", "gather"), _pick),
    **ROUTING_RULES,
    # Uninitialised, or written by a random number generator: nothing is known.
    **dict.fromkeys(("empty", "empty_like", "empty_strided", "new_empty", "set_"), _nothing),
}
# These make something of nothing known; all other rules need an input that is known.
STARTS = {
    *("zeros", "zeros_like", "new_zeros", "zero_", "ones", "ones_like", "new_ones"),
    *("full", "full_like", "new_full", "fill_", "fill"),
    *_FACTORIES,
    *COPIES,
    *("copy_", "copy", "topk", "argmax", "sort", "argsort", "max", "cat", "stack", "sum"),
    *("min", "argmin", "count_nonzero", "constant_pad_nd"),
    *("index_put", "index_put_", "randperm", "multinomial", "randint"),
    *FINITE,
    *SOUND,
    *("eq", "ne", "lift_fresh"),
    *VENDOR_RULES,
    "_amp_foreach_non_finite_check_and_unscale_",
}
