"""Choosing the best few, and counting the choices: what routers of experts do.

Which expert a token chooses depends on data that does not exist; how many tokens choose each is an
assumption: evenly many, or as an ``Imbalance`` says. The counts are whole numbers that add up, and
all that follows from one choice agrees with them, on every rank that routes as many tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainscout.simulators.predictor.moe.popularity import MOST_EXPERTS

from . import plain
from .call import Call, Rule, in_full_if_written_over, unless_known
from .defaults import ASSUMED_SHARE, EXACT_ELEMENTS
from .shadow import Categories, Grade, Kind, Known, Shadow, multiplicity, total


def is_spread(shadow: Shadow | None) -> bool:
    """Whether the best of such a tensor are its non-zeros first."""
    return isinstance(shadow, Known) and shadow.kind in (Kind.SHARE, Kind.SUPPORT)


def scattered(
    tensor: torch.Tensor,
    shadow: Shadow | None,
    dim: int,
    index: torch.Tensor,
    chosen: Categories,
    source: Shadow | None,
    accumulates: bool,
) -> Known | None:
    """``tensor`` of zeros after values were put where ``index`` says along ``dim``."""
    if not isinstance(shadow, Known) or shadow.kind is not Kind.DEFINITE or shadow.value.any():
        return None
    if tensor.shape[dim] < chosen.number or chosen.lowest:
        return None
    # Routings over the elements of the tensor that are of one category.
    each = index.numel() * tensor.shape[dim] / max(tensor.numel(), 1)
    shares = plain.zeros(tensor.shape[dim], dtype=torch.float64)
    shares[: chosen.number] = chosen.all_shares() * each
    value = shares.reshape([-1 if d == dim else 1 for d in range(tensor.dim())])
    if len(chosen.shares) == 1 and tensor.shape[dim] == chosen.number:
        value = value.narrow(dim, 0, 1).clone()
    one = isinstance(source, Known) and source.kind is Kind.DEFINITE
    if not one:
        return None if accumulates else Known(value, Grade.EXPECTED, Kind.SUPPORT, chosen.nested)
    assert isinstance(source, Known)
    if accumulates:
        return counted(tensor, value * source.as_mean().mean())
    if bool((source.value == 1).all()):
        return Known(value.clamp(max=1), Grade.EXPECTED, Kind.SHARE, chosen.nested)
    if source.value.numel() == 1:
        return Known(value * source.as_mean().reshape(()), Grade.EXPECTED, Kind.MEAN)
    return None


def counted(tensor: torch.Tensor, value: torch.Tensor) -> Known:
    """Sums per category: definite when each has an element of its own."""
    if value.numel() < tensor.numel():
        return Known(value, Grade.EXPECTED, Kind.MEAN)
    return Known(value.round().to(tensor.dtype), Grade.EXPECTED)


def histogram(
    tensor: torch.Tensor, chosen: Categories, bins: int, low: float, high: float
) -> torch.Tensor | None:
    """Counts of ``torch.histc``, (bins,) float64; the last bin includes its upper edge."""
    if high <= low or bins < 1:
        return None
    counts = chosen.counts(tensor.numel()).double()
    values = chosen.numbers().double()
    where = ((values - low) * bins / (high - low)).floor().long()
    where = torch.where(values == high, bins - 1, where)
    inside = (values >= low) & (values <= high)
    return torch.bincount(where[inside], counts[inside], bins)


def ones_in(mask: torch.Tensor, shadow: Shadow | None) -> tuple[int, Grade]:
    """How many elements of a mask are set, and what that is worth."""
    if not isinstance(shadow, Known) or shadow.kind in (Kind.MEAN, Kind.RANK):
        return assumed(mask.numel()), Grade.EXPECTED
    if shadow.kind is Kind.DEFINITE:
        return int((shadow.value != 0).sum()) * multiplicity(shadow, mask.shape), shadow.grade
    return round(total(shadow, mask.shape)), shadow.grade


def assumed(most: int) -> int:
    """How many are taken of so many, where nothing is known: nothing at all would be a special
    case in most scripts."""
    return max(min(1, most), round(most * ASSUMED_SHARE))


def share_of(mask: torch.Tensor, ones: int) -> Known:
    """A mask of which so many elements are set."""
    share = plain.full((1,) * mask.dim(), ones / max(1, mask.numel()), dtype=torch.float64)
    return Known(share, Grade.EXPECTED, Kind.SHARE)


# Operations that choose, count and mark choices: what routers of experts are made of.


@unless_known
def _topk(call: Call) -> Sequence[Shadow | None]:
    scores = call.args[0]
    if not scores.dim():
        return [None, None]
    number, dim = int(call.argument("k")), call.dim(scores)
    shadow = call.get(scores)
    if not (isinstance(shadow, Known) and shadow.kind is Kind.SUPPORT):
        return [None, call.routers.choose(scores, dim, number, is_spread(shadow))]
    # Zeros come last: so many of the best are none.
    each = shadow.as_mean()
    alike = scores.shape[dim] // each.shape[dim]
    kept = each.sum(dim, keepdim=True) * alike / number
    if each.numel() == scores.shape[dim] and 0 < float(kept) < 1 + 1e-9:
        # All others were chosen before.
        chosen = Categories(each.numel(), each.reshape(-1) / each.sum(), nested=True)
    else:
        chosen = call.routers.choose(scores, dim, number, nested=True)
    return [Known(kept.clamp(max=1), shadow.grade, Kind.SUPPORT), chosen]


def _permutation(call: Call) -> Sequence[Shadow | None]:
    """``randperm``: every number once."""
    number = max(1, call.results[0].numel())
    return [Categories(number, plain.full((1,), 1 / number, dtype=torch.float64))]


def _drawn(call: Call) -> Sequence[Shadow | None]:
    """``multinomial``: any of the options."""
    options = call.args[0].shape[-1]
    return [Categories(options, plain.full((options,), 1 / options, dtype=torch.float64))]


def _whole_numbers(call: Call) -> Sequence[Shadow | None]:
    """``randint``: a few numbers lie evenly between the least and the most, the middle one first,
    since of numbers drawn for all some scripts take the first."""
    result = call.results[0]
    number = result.numel()
    if not 0 < number <= EXACT_ELEMENTS:
        return [None]
    low, high = call.argument("low", 0), call.argument("high")
    places = low + (2 * plain.arange(number) + 1) * (high - low) // (2 * number)
    value = places.roll(-(number // 2)).reshape(result.shape).to(result.dtype)
    return [Known(value, Grade.EXACT if high - low == 1 else Grade.EXPECTED)]


@unless_known
def best(call: Call) -> Sequence[Shadow | None]:
    """argmax(x, dim), max(x, dim) and those of the least: the best one."""
    scores = call.args[0]
    nothing: list[Shadow | None] = [None] * len(call.results)
    if call.argument("dim") is None or not scores.dim():
        return nothing
    chosen = call.routers.choose(scores, call.dim(scores), 1, is_spread(call.get(scores)))
    return [*nothing[:-1], chosen]


@unless_known
def _sort(call: Call) -> Sequence[Shadow | None]:
    """Sorted categories are the same categories; the order of unknown scores is any order, in
    which no option is more popular than another."""
    tensor = call.args[0]
    shadow = call.get(tensor)
    order: Shadow | None = None
    if not isinstance(shadow, Categories) and tensor.dim():
        options = tensor.shape[call.dim(tensor)]
        even = plain.full((options,), 1 / options, dtype=torch.float64)
        if options <= MOST_EXPERTS:
            order = Categories(options, even, is_spread(shadow))
    if len(call.results) == 1:
        return [order]
    return [shadow if isinstance(shadow, Categories) else None, order]


@unless_known
def _scatter(call: Call) -> Sequence[Shadow | None]:
    tensor, index = call.args[0], call.argument("index")
    chosen = call.get(index)
    way, dim = call.argument("reduce"), call.dim(tensor)
    accumulates = "add" in call.name or way in ("add", "sum")
    if chosen is None and accumulates and 0 < (number := tensor.shape[dim]) <= MOST_EXPERTS:
        # Edges by their atom, where nobody knows which: evenly many, and none is lost.
        chosen = Categories(number, plain.full((1,), 1 / number, dtype=torch.float64))
    if not isinstance(chosen, Categories) or (way is not None and not accumulates):
        return in_full_if_written_over(call) or [None]
    source = call.argument("src", call.argument("value"))
    if isinstance(source, torch.Tensor):
        shadow = call.get(source)
    else:
        shadow = Known(plain.full((1,) * tensor.dim(), source), Grade.EXACT)
    return [scattered(tensor, call.get(tensor), dim, index, chosen, shadow, accumulates)]


@unless_known
def _running_sum(call: Call) -> Sequence[Shadow | None]:
    """Of a mask along tokens that are all alike: how many ones so far."""
    tensor = call.args[0]
    shadow = call.get(tensor)
    if not isinstance(shadow, Known) or shadow.kind is not Kind.SHARE:
        return [None]
    dim = call.dim(tensor)
    others = [d for d in range(tensor.dim()) if d != dim and tensor.shape[d] > 1]
    if shadow.value.shape[dim] > 1 or any(shadow.value.shape[d] == 1 for d in others):
        return [None]
    return [Known(shadow.value, shadow.grade, Kind.RANK)]


@unless_known
def _index_put(call: Call) -> Sequence[Shadow | None]:
    tensor, indices = call.args[0], call.args[1]
    mask = indices[0] if len(indices) == 1 else None
    if mask is not None and mask.dtype is torch.bool and mask.shape == tensor.shape:
        return [_written(call, tensor, mask, call.argument("values"))]
    found = [(d, i, call.get(i)) for d, i in enumerate(indices) if i is not None]
    chosen = [(d, i, s) for d, i, s in found if isinstance(s, Categories)]
    if len(chosen) != 1 or any(i.dtype is torch.bool for _, i, _ in found):
        return in_full_if_written_over(call) or [None]
    dim, index, categories = chosen[0]
    assert isinstance(categories, Categories)
    shape = torch.broadcast_shapes(*(i.shape for _, i, _ in found))
    # As many as the indices together address.
    wide = plain.empty(shape, device="meta") if shape != index.shape else index
    source, accumulates = call.shadow("values"), bool(call.argument("accumulate", False))
    return [scattered(tensor, call.get(tensor), dim, wide, categories, source, accumulates)]


def _written(
    call: Call, tensor: torch.Tensor, mask: torch.Tensor, values: torch.Tensor
) -> Known | None:
    """A mask of which those elements are written that another selects."""
    kept, where = call.get(tensor), call.get(mask)
    if not (tensor.dtype is mask.dtype is torch.bool and values.numel() > 1):
        return _extended(kept, where, call.get(values))
    ones, _ = ones_in(values, call.get(values))
    if kept is where is None:
        # Written where it was set (mask[mask.clone()] = which), or as good as that.
        return share_of(tensor, ones)
    if not (isinstance(kept, Known) and isinstance(where, Known)):
        return None
    if kept.kind is where.kind is Kind.DEFINITE:
        outside = (kept.value & ~where.value).expand(tensor.shape)
        return share_of(tensor, ones + int(outside.sum()))
    return None


def _extended(shadow: Shadow | None, mask: Shadow | None, value: Shadow | None) -> Known | None:
    """A mask of which more elements are set: up to so many of its zeros."""
    if not isinstance(shadow, Known) or shadow.kind is not Kind.SHARE:
        return None
    if not isinstance(mask, Known) or mask.beyond is None or not isinstance(value, Known):
        return None
    if value.kind is not Kind.DEFINITE or not bool((value.value == 1).all()):
        return None
    share = shadow.as_mean() + mask.beyond
    return Known(share, min(shadow.grade, mask.grade), Kind.SHARE)


def _router(call: Call) -> Sequence[Shadow | None]:
    """A router in one kernel: the mask of choices and, if it comes first, their weights."""
    logits = call.args[0]
    chosen = call.routers.choose(logits, logits.dim() - 1, int(call.argument("topk")), False)
    share = chosen.all_shares() * int(call.argument("topk"))
    share = share.reshape((1,) * (logits.dim() - 1) + (-1,))
    mask = Known(share, Grade.EXPECTED, Kind.SHARE)
    weights = Known(share, Grade.EXPECTED, Kind.SUPPORT)
    return [
        mask if result.dtype is torch.bool else weights if place == 0 else None
        for place, result in enumerate(call.results)
    ]


def _layout(call: Call) -> Sequence[Shadow | None]:
    """How many tokens go to each rank, once each, and to each of its experts."""
    choices, ranks = call.args[0], int(call.argument("ranks"))
    chosen = call.get(choices)
    if not isinstance(chosen, Categories):
        return [None, None, None]
    tokens, top_k = choices.shape
    # Behind those that stand for no choice.
    held = chosen.all_shares()[-chosen.lowest :].reshape(ranks, -1).sum(1)
    experts, kept = chosen.number + chosen.lowest, float(held.sum())
    nowhere = plain.full((ranks,), 1.0, dtype=torch.float64)
    for before in range(top_k):
        # A token chooses an expert once: each choice is among those left.
        nowhere *= (1 - held * experts / (experts - before * kept)).clamp(min=0)
    goes = 1 - nowhere
    of_expert = chosen.counts(choices.numel())[-chosen.lowest :]
    most = of_expert.reshape(ranks, -1).amax(1)
    of_rank = (goes * tokens).round().to(torch.int64).maximum(most)
    return [
        Known(of_rank.to(torch.int32), Grade.EXPECTED),
        Known(of_expert.to(torch.int32), Grade.EXPECTED),
        Known(goes.reshape(1, -1), Grade.EXPECTED, Kind.SHARE),
    ]


def _arrivals(call: Call) -> Sequence[Shadow | None]:
    """The experts here that arriving tokens chose, and -1 for those elsewhere."""
    arrived = plain.tensor(call.argument("tokens_of_expert"), dtype=torch.float64)
    places = max(call.results[0].numel(), 1)
    elsewhere = (places - arrived.sum()).clamp(min=0).reshape(1)
    shares = torch.cat([elsewhere, arrived])
    return [Categories(len(shares), shares / shares.sum(), lowest=-1)]


@unless_known
def _histc(call: Call) -> Sequence[Shadow | None]:
    tensor = call.args[0]
    shadow = call.get(tensor)
    if not isinstance(shadow, Categories):
        return [None]
    low, high = call.argument("min", 0), call.argument("max", 0)
    counts = histogram(tensor, shadow, int(call.argument("bins", 100)), low, high)
    return [None if counts is None else counted(call.results[0], counts)]


ROUTING_RULES: dict[str, Rule] = {
    "topk": _topk,
    "randperm": _permutation,
    "multinomial": _drawn,
    "randint": _whole_numbers,
    "argmax": best,
    "argmin": best,
    **dict.fromkeys(("sort", "argsort"), _sort),
    **dict.fromkeys(("scatter", "scatter_", "scatter_add", "scatter_add_"), _scatter),
    **dict.fromkeys(("scatter_reduce", "scatter_reduce_"), _scatter),
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), _index_put),
    "histc": _histc,
    "cumsum": _running_sum,
}
# Emulated vendor kernels of which more is known than their schema says.
VENDOR_RULES: dict[str, Rule] = {
    "expert_arrivals": _arrivals,
    "expert_layout": _layout,
    "moe_router_fwd": _router,
    "moe_aux_scores_fwd": _router,
}
