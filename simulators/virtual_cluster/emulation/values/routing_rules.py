"""Operations that choose, count and mark choices: what routers of experts are made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainscout.simulators.predictor.moe.popularity import MOST_EXPERTS
from trainscout.simulators.virtual_cluster.emulation.values import plain
from trainscout.simulators.virtual_cluster.emulation.values.call import (
    Call,
    Rule,
    in_full_if_known,
)
from trainscout.simulators.virtual_cluster.emulation.values.host import name_of
from trainscout.simulators.virtual_cluster.emulation.values.routing import (
    counted,
    histogram,
    is_spread,
    scattered,
)
from trainscout.simulators.virtual_cluster.emulation.values.shadow import (
    Categories,
    Grade,
    Kind,
    Known,
    Shadow,
)


def _topk(call: Call) -> Sequence[Shadow | None]:
    exact = in_full_if_known(call)
    if exact is not None:
        return exact
    scores = call.args[0]
    if not scores.dim():
        return [None, None]
    number = int(call.argument("k"))
    nested = is_spread(call.get(scores))
    return [None, call.routers.choose(scores, call.dim(scores), number, nested)]


def best(call: Call) -> Sequence[Shadow | None]:
    """argmax(x, dim) and max(x, dim): the best one."""
    exact = in_full_if_known(call)
    if exact is not None:
        return exact
    scores = call.args[0]
    nothing: list[Shadow | None] = [None] * len(call.results)
    if call.argument("dim") is None or not scores.dim():
        return nothing
    chosen = call.routers.choose(scores, call.dim(scores), 1, is_spread(call.get(scores)))
    return [*nothing[:-1], chosen]


def _sort(call: Call) -> Sequence[Shadow | None]:
    """Sorted categories are the same categories; the order of unknown scores is any order, in
    which no option is more popular than another."""
    exact = in_full_if_known(call)
    if exact is not None:
        return exact
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


def _scatter(call: Call) -> Sequence[Shadow | None]:
    exact = in_full_if_known(call)
    if exact is not None:
        return exact
    tensor, index = call.args[0], call.argument("index")
    chosen = call.get(index)
    if not isinstance(chosen, Categories):
        return [None]
    source = call.argument("src", call.argument("value"))
    if isinstance(source, torch.Tensor):
        shadow = call.get(source)
    else:
        shadow = Known(plain.full((1,) * tensor.dim(), source), Grade.EXACT)
    accumulates = "add" in name_of(call.func) or call.argument("reduce") == "sum"
    dim = call.dim(tensor)
    return [scattered(tensor, call.get(tensor), dim, index, chosen, shadow, accumulates)]


def _running_sum(call: Call) -> Sequence[Shadow | None]:
    """Of a mask along tokens that are all alike: how many ones so far."""
    exact = in_full_if_known(call)
    if exact is not None:
        return exact
    tensor = call.args[0]
    shadow = call.get(tensor)
    if not isinstance(shadow, Known) or shadow.kind is not Kind.SHARE:
        return [None]
    dim = call.dim(tensor)
    others = [d for d in range(tensor.dim()) if d != dim and tensor.shape[d] > 1]
    if shadow.value.shape[dim] > 1 or any(shadow.value.shape[d] == 1 for d in others):
        return [None]
    return [Known(shadow.value, shadow.grade, Kind.RANK)]


def _index_put(call: Call) -> Sequence[Shadow | None]:
    exact = in_full_if_known(call)
    if exact is not None:
        return exact
    tensor, indices = call.args[0], call.args[1]
    if len(indices) == 1 and indices[0] is not None and indices[0].shape == tensor.shape:
        return [_extended(call.get(tensor), call.get(indices[0]), call.shadow("values"))]
    found = [(d, i, call.get(i)) for d, i in enumerate(indices) if i is not None]
    chosen = [(d, i, s) for d, i, s in found if isinstance(s, Categories)]
    if len(chosen) != 1 or any(i.dtype is torch.bool for _, i, _ in found):
        return [None]
    dim, index, categories = chosen[0]
    assert isinstance(categories, Categories)
    shape = torch.broadcast_shapes(*(i.shape for _, i, _ in found))
    # As many as the indices together address.
    wide = plain.empty(shape, device="meta") if shape != index.shape else index
    source, accumulates = call.shadow("values"), bool(call.argument("accumulate", False))
    return [scattered(tensor, call.get(tensor), dim, wide, categories, source, accumulates)]


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


def _histc(call: Call) -> Sequence[Shadow | None]:
    exact = in_full_if_known(call)
    if exact is not None:
        return exact
    tensor = call.args[0]
    shadow = call.get(tensor)
    if not isinstance(shadow, Categories):
        return [None]
    low, high = call.argument("min", 0), call.argument("max", 0)
    counts = histogram(tensor, shadow, int(call.argument("bins", 100)), low, high)
    return [None if counts is None else counted(call.results[0], counts)]


ROUTING_RULES: dict[str, Rule] = {
    "topk": _topk,
    "argmax": best,
    **dict.fromkeys(("sort", "argsort"), _sort),
    **dict.fromkeys(("scatter", "scatter_", "scatter_add", "scatter_add_"), _scatter),
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), _index_put),
    "histc": _histc,
    "cumsum": _running_sum,
}
# Emulated vendor kernels of which more is known than their schema says.
VENDOR_RULES: dict[str, Rule] = {"moe_router_fwd": _router, "moe_aux_scores_fwd": _router}
