"""Operations element by element, on compact values.

For elements known one by one the operation itself is run. For a tensor of zeros and ones of which
only the share of ones is known, running it on a 0 and on a 1 gives the exact expectation.
Beyond that, expectations are propagated as if they were values (mean field).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from . import plain
from .call import CANNOT, Call
from .defaults import EXACT_ELEMENTS, FOLLOWED_ELEMENTS
from .shadow import Categories, Grade, Kind, Known, Shadow, apportion, multiplicity

BOTH = {
    "mul", "mul_", "logical_and", "logical_and_", "bitwise_and", "bitwise_and_", "__and__",
    "__iand__",
}  # fmt: skip
EITHER = {"logical_or", "logical_or_", "bitwise_or", "bitwise_or_", "__or__", "__ior__"}

# Large tables that models make of positions, again for every token: no script reads them. Squares
# are read (distances, which a mask is made of), bases to the power of positions are not.
TABLES = {"sin", "cos", "exp", "pow", "tanh"}

Pairs = Sequence[tuple[torch.Tensor, Shadow]]


def elementwise(call: Call, pairs: Pairs) -> Known | Categories | None:
    """The shadow of a pointwise operation's result; ``pairs``: every tensor among the arguments
    with its shadow, none is missing."""
    result = call.results[0]
    chosen = [(t, s) for t, s in pairs if isinstance(s, Categories)]
    if chosen:
        return _of_categories(call, pairs, chosen)
    known = {id(t): s for t, s in pairs if isinstance(s, Known)}
    if len(known) < len({id(t) for t, _ in pairs}):
        return None
    grade = min((s.grade for s in known.values()), default=Grade.EXACT)
    soft = [s for s in known.values() if s.kind is not Kind.DEFINITE]
    if any(s.kind is Kind.RANK for s in soft):
        return _of_rank(call, known, grade)
    if any(s.kind is Kind.SUPPORT for s in soft):
        return _of_support(call, soft, list(known.values()), grade)
    values = {key: s.value for key, s in known.items()}
    table = call.name in TABLES and not isinstance(call.argument("exponent"), int | float)
    if table and max(v.numel() for v in values.values()) > EXACT_ELEMENTS:
        return None
    if not soft:
        value = _run(call, values, result)
        return None if value is None else Known(value, grade)
    name = call.name
    if all(s.kind is Kind.SHARE for s in soft):
        if len(soft) == 1:
            return _of_share(call, known, soft[0], grade)
        if len(soft) == len(known) and name in BOTH | EITHER:
            nested = any(s.nested for s in soft)
            first, second = (s.as_mean() for s in (soft[0], soft[-1]))
            both = torch.minimum(first, second) if nested else first * second
            share = both if name in BOTH else first + second - both
            return Known(share, grade, Kind.SHARE, nested)
    values = {k: s.value if s.kind is Kind.DEFINITE else s.as_mean() for k, s in known.items()}
    value = _run(call, values, result)
    if value is None or value.dtype is torch.bool:
        # Whether a mean passes a threshold says nothing about how many elements do.
        return None
    return Known(value if result.dtype.is_floating_point else value.double(), grade, Kind.MEAN)


def _run(
    call: Call, values: Mapping[int, torch.Tensor], result: torch.Tensor
) -> torch.Tensor | None:
    """The operation on compact values; what it writes in place is a copy."""
    args = call.args
    try:
        shape = torch.broadcast_shapes(*(v.shape for v in values.values()))
    except RuntimeError:
        return None
    if shape.numel() > FOLLOWED_ELEMENTS:
        return None
    written = {id(args[p]) for p in call.signature.written if isinstance(args[p], torch.Tensor)}
    # An in-place operation keeps its own shape, so what others add to it must fit in.
    room = {
        key: value.expand(torch.broadcast_shapes(value.shape, shape)).clone()
        if key in written
        else value
        for key, value in values.items()
    }
    try:
        made = call.on_host(lambda t: room.get(id(t), t))
    except CANNOT:
        return None
    if not isinstance(made, torch.Tensor):
        return None
    # Fewer dimensions than the result: alike along the leading ones.
    return made.reshape((1,) * (result.dim() - made.dim()) + tuple(made.shape))


def _of_share(call: Call, known: Mapping[int, Known], share: Known, grade: Grade) -> Known | None:
    tensors = {id(t): t for t in call.tensors}
    result = call.results[0]
    made = []
    for element in (0, 1):
        values = {
            key: plain.full((1,) * s.value.dim(), element, dtype=tensors[key].dtype)
            if s is share
            else s.value
            for key, s in known.items()
        }
        made.append(_run(call, values, result))
    if made[0] is None or made[1] is None:
        return None
    zero, one = made[0].double(), made[1].double()
    mean = zero + (one - zero) * share.as_mean()
    binary = all(bool(((v == 0) | (v == 1)).all()) for v in (zero, one))
    if binary:
        rising = bool((one >= zero).all())
        return Known(mean, grade, Kind.SHARE, share.nested and rising)
    if result.dtype.is_floating_point:
        mean = mean.to(result.dtype)
    return Known(mean, grade, Kind.MEAN)


def _of_rank(call: Call, known: Mapping[int, Known], grade: Grade) -> Known | None:
    """``rank <= limit``: the elements up to the ``limit``-th of those that are counted."""
    rank, limit = (known.get(id(a)) for a in call.args[:2])
    if call.name != "le" or rank is None or limit is None:
        return None
    if rank.kind is not Kind.RANK or limit.kind is not Kind.DEFINITE:
        return None
    length = multiplicity(rank, call.results[0].shape)
    if rank.value.shape != limit.value.shape:
        return None
    share = rank.as_mean()
    beyond = torch.minimum(limit.as_mean() / length, share)
    return Known((beyond / share).nan_to_num(1.0), grade, Kind.SHARE, beyond=beyond)


def _of_support(
    call: Call, soft: Sequence[Known], known: Sequence[Known], grade: Grade
) -> Known | None:
    """Products and copies of a tensor of which only the share of non-zeros is known. Which of
    them are above zero is asked of weights that none is below."""
    name = call.name
    if name in ("eq", "ne", "gt", "le") and len(known) == 1 and call.args[1] == 0:
        if name in ("eq", "le"):
            return Known(1 - soft[0].as_mean(), grade, Kind.SHARE)
        return Known(soft[0].value, grade, Kind.SHARE, soft[0].nested)
    if name in BOTH and all(s.kind in (Kind.SHARE, Kind.SUPPORT) for s in soft):
        share = soft[0].as_mean()
        for other in soft[1:]:
            nested = soft[0].nested or other.nested
            share = torch.minimum(share, other.as_mean()) if nested else share * other.as_mean()
        for other in known:
            if other.kind is Kind.DEFINITE:
                share = share * (other.value != 0)
        return Known(share, grade, Kind.SUPPORT)
    if name in {"div", "neg", "abs"} and len(soft) == 1 and len(known) == 1:
        return soft[0]
    return None


def _of_categories(call: Call, pairs: Pairs, chosen: Pairs) -> Known | Categories | None:
    """One tensor of categories with values that are known: the operation on each category."""
    result = call.results[0]
    tensor, shadow = chosen[0]
    assert isinstance(shadow, Categories)
    if call.name in ("masked_fill", "masked_fill_") and call.argument("value") == -1:
        mask = call.get(call.args[1])
        if isinstance(mask, Known) and mask.kind is Kind.SHARE and mask.value.numel() == 1:
            return None if shadow.lowest else shadow.without(float(mask.as_mean()))
    others = {id(t): s for t, s in pairs if t is not tensor}
    definite = [s for s in others.values() if isinstance(s, Known) and s.kind is Kind.DEFINITE]
    if len(definite) < len(others) or len({id(t) for t, _ in chosen}) > 1:
        return None
    # Each category in turn along a leading dimension of its own.
    deep = max([result.dim(), *(s.value.dim() for s in definite)])
    column = shadow.numbers().reshape(-1, *(1,) * deep).to(tensor.dtype)
    values = {
        key: s.value.reshape((1,) * (deep + 1 - s.value.dim()) + tuple(s.value.shape))
        for key, s in others.items()
        if isinstance(s, Known)
    }
    made = _run(call, {id(tensor): column, **values}, column)
    if made is None:
        return None
    shares = shadow.all_shares()
    if made.numel() == shadow.number:
        again = _as_categories(made.reshape(-1), shares, result.dtype, shadow.nested)
        if again is not None:
            return again
    mean = (shares.reshape(-1, *(1,) * deep) * made.double()).sum(0)
    mean = mean.reshape(mean.shape[deep - result.dim() :])
    grade = min([Grade.EXPECTED, *(s.grade for s in definite)])
    if made.dtype is torch.bool:
        return Known(mean, grade, Kind.SHARE)
    return Known(mean.to(result.dtype) if result.is_floating_point() else mean, grade, Kind.MEAN)


def _as_categories(
    values: torch.Tensor, shares: torch.Tensor, dtype: torch.dtype, nested: bool
) -> Categories | None:
    """What the categories became, when that is whole numbers again: ``expert // per_rank``."""
    if dtype is torch.bool:
        return None
    # What a rank does not own comes before its own: ``expert - first_of_rank``.
    possible = (values >= 0) | (shares > 0)
    values, shares = values[possible], shares[possible]
    whole = values.to(torch.int64)
    if bool((whole < 0).any()) or bool((whole != values).any()) or int(whole.max()) >= (1 << 16):
        return None
    number = int(whole.max()) + 1
    return Categories(number, torch.bincount(whole, shares, number), nested)


# Sums, means and questions about all elements, on compact values.

# Of elements that are all alike, the reduction of one of them, times how many there are or not.
_ADDS_UP = {"sum", "nansum", "count_nonzero"}
_EXTREMES = {"amax", "amin", "max", "min"}
_STAYS = {"mean", "any", "all"} | _EXTREMES
REDUCTIONS = _ADDS_UP | _STAYS


def reduction(call: Call, tensor: torch.Tensor, shadow: Known | Categories) -> Known | None:
    """The shadow of a reduction of ``tensor``, None if nothing is known of it."""
    name, result = call.name, call.results[0]
    dims = _dims(call, tensor.dim())
    if isinstance(shadow, Categories):
        return _reduced_categories(name, dims, tensor, shadow, result)
    if shadow.kind is Kind.RANK:
        return None
    folded = 1
    for dim in dims:
        if shadow.value.shape[dim] == 1:
            folded *= tensor.shape[dim]
    if shadow.kind is Kind.DEFINITE:
        try:
            value = call.on_host(lambda _: shadow.value)
        except CANNOT:
            return None
        return Known(value * folded if name in _ADDS_UP else value, shadow.grade)
    keep = result.dim() == tensor.dim()
    mean = shadow.as_mean()
    open_dims = {d for d in range(tensor.dim()) if shadow.value.shape[d] == 1 < tensor.shape[d]}
    settled = open_dims <= set(dims)
    whole = shadow.kind is Kind.MEAN and not result.is_floating_point()
    if whole and settled and name in _EXTREMES:
        # Lengths that are all what they are in the mean, as they are read.
        extreme = mean.amax(dims, keep) if name in ("max", "amax") else mean.amin(dims, keep)
        return Known(extreme.round().to(result.dtype), shadow.grade)
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
    if not share:
        return None
    # Of zeros and ones: whether at least one is 1, or all are. Of exchangeable ones (the experts
    # of a token) few are together by chance: they are different choices.
    some = name in ("any", "amax", "max")
    if not settled:
        found = summed.clamp(max=1) if some else (summed - count + 1).clamp(min=0)
        return Known(found, shadow.grade, Kind.SHARE)
    found = summed >= 0.5 if some else summed >= count - 0.5
    return Known(found.to(dtype), shadow.grade)


def _reduced_categories(
    name: str, dims: Sequence[int], tensor: torch.Tensor, shadow: Categories, result: torch.Tensor
) -> Known | None:
    if len(dims) < tensor.dim():
        return None
    present = shadow.numbers()[shadow.counts(tensor.numel()) > 0]
    if name in ("max", "amax"):
        value = present.max()
    elif name in ("min", "amin"):
        value = present.min()
    else:
        return None
    return Known(value.to(result.dtype).reshape((1,) * result.dim()), Grade.EXPECTED)


def _dims(call: Call, ndim: int) -> tuple[int, ...]:
    dim = call.argument("dim")
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(ndim))
    dims = dim if isinstance(dim, (list, tuple)) else (dim,)
    return tuple(d % ndim for d in dims if ndim)
