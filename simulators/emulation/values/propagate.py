"""From what is known of an operation's inputs to what is known of its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from simulators.emulation.values.defaults import EXACT_ELEMENTS, FINITE, FOLLOWED_ELEMENTS
from simulators.emulation.values.elementwise import elementwise
from simulators.emulation.values.host import CANNOT, Signature, name_of, run, signature, tensors_in
from simulators.emulation.values.reductions import REDUCTIONS, reduction
from simulators.emulation.values.routing import (
    Routers,
    counted,
    histogram,
    is_spread,
    scattered,
)
from simulators.emulation.values.shadow import Categories, Grade, Kind, Known, Missing, Shadow
from simulators.emulation.values.shapes import COPIES, RESHAPES, filled, of_cat, of_copy, of_view
from simulators.moe.popularity import MOST_EXPERTS


@dataclass(frozen=True)
class Call:
    """One operation: how it was called, on what, and what came out (of no data)."""

    func: OpOverload
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    results: Sequence[torch.Tensor]
    get: Callable[[torch.Tensor], Shadow | None]
    routers: Routers

    @property
    def signature(self) -> Signature:
        """What its schema says."""
        return signature(self.func)

    def argument(self, name: str, default: Any = None) -> Any:
        """By its name in the schema, given or not."""
        if name in self.kwargs:
            return self.kwargs[name]
        for position, declared in enumerate(self.func._schema.arguments):
            if declared.name == name:
                return self.args[position] if position < len(self.args) else default
        return default

    def shadow(self, name: str) -> Shadow | None:
        """Of a tensor argument."""
        value = self.argument(name)
        return self.get(value) if isinstance(value, torch.Tensor) else None

    def dim(self, tensor: torch.Tensor, default: int = -1) -> int:
        """The argument ``dim``, counted from the front."""
        given = self.argument("dim", default)
        return int(given) % tensor.dim() if tensor.dim() else 0


# Element by element, though torch does not tag them so.
_POINTWISE = {
    *("floor_divide", "floor_divide_", "masked_fill_", "where", "isclose"),
    *("__and__", "__or__", "__xor__", "__iand__", "__ior__"),
}
# One shadow per tensor that the operation returns or writes, in that order of its schema.
Rule = Callable[[Call], Sequence[Shadow | None]]


def propagate(call: Call) -> Sequence[Shadow | None]:
    """Shadows of ``call.results``, None where nothing is known."""
    name = name_of(call.func)
    rule = RULES.get(name) or VENDOR_RULES.get(name)
    if name in ("max", "min") and len(call.results) == 2:
        rule = _best
    if rule is not None:
        return rule(call)
    tensors = list(tensors_in((*call.args, *call.kwargs.values())))
    pairs = [(t, call.get(t)) for t in tensors]
    known = [(t, s) for t, s in pairs if s is not None and not isinstance(s, Missing)]
    nothing: list[Shadow | None] = [None] * len(call.results)
    if not known or len(known) < len(pairs) or call.signature.is_random:
        return nothing
    if (call.signature.is_pointwise or name in _POINTWISE) and len(call.results) == 1:
        found: Shadow | None = elementwise(
            call.func, call.args, call.kwargs, known, call.results[0]
        )
        return [found]
    if name in REDUCTIONS and len(call.results) == 1 and len(known) == 1:
        tensor, shadow = known[0]
        if isinstance(shadow, (Known, Categories)):
            return [reduction(call.func, call.args, call.kwargs, tensor, shadow, call.results[0])]
    if name in RESHAPES:
        tensor, shadow = known[0]
        return of_view(call.func, call.args, call.kwargs, tensor, shadow, call.results)
    return in_full(call, known) or nothing


def in_full(
    call: Call, known: Sequence[tuple[torch.Tensor, Shadow]]
) -> Sequence[Shadow | None] | None:
    """The operation itself, when all its inputs are known one by one and small."""
    elements = [t.numel() for t, _ in known] + [r.numel() for r in call.results]
    if max(elements) > FOLLOWED_ELEMENTS or not call.signature.is_builtin:
        return None
    values: dict[int, torch.Tensor] = {}
    grade = Grade.EXACT
    for tensor, shadow in known:
        if not isinstance(shadow, Known) or shadow.kind is not Kind.DEFINITE:
            return None
        # A copy: in-place operations write it, and it may be as compact as ``expand`` makes it.
        values[id(tensor)] = shadow.value.expand(tensor.shape).to(tensor.dtype, copy=True)
        grade = min(grade, shadow.grade)
    try:
        made = run(call.func, call.args, call.kwargs, lambda t: values.get(id(t), t))
    except CANNOT:
        return None
    written = [
        values[id(t)]
        for t in written_tensors(call.func, call.args, call.kwargs)
        if id(t) in values
    ]
    returned = list(tensors_in([made]))
    # The results of the call are those returned, then those written but not returned.
    fresh = [r for r in written if not any(r is m for m in returned)]
    outcome = [*returned, *fresh][: len(call.results)]
    if [tuple(v.shape) for v in outcome] != [tuple(r.shape) for r in call.results]:
        return None
    return [Known(value, grade) for value in outcome]


def written_tensors(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[torch.Tensor]:
    """The arguments that the operation writes."""
    declared = signature(func)
    positions = [args[p] for p in declared.written if p < len(args)]
    return list(tensors_in([*positions, *(kwargs.get(k) for k in declared.written_keywords)]))


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
    """Small tensors of whatever numbers: arange, eye, linspace."""
    if call.results[0].numel() > EXACT_ELEMENTS:
        return [None]
    return in_full(call, [(call.results[0], filled(call.results[0], 0, Grade.EXACT))]) or [None]


def _copy(call: Call) -> Sequence[Shadow | None]:
    shadow = call.get(call.args[0])
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
            return [
                elementwise(
                    call.func, call.args, call.kwargs, [(call.args[0], shadow)], call.results[0]
                )
            ]
        return [filled(call.results[0], answer, Grade.INVENTED)]

    return rule


def _compare(call: Call) -> Sequence[Shadow | None]:
    """eq and ne: ``isfinite`` and ``isnan`` are made of comparisons with itself and infinity."""
    one, other = call.args[0], call.args[1]
    pairs = [(t, call.get(t)) for t in call.args if isinstance(t, torch.Tensor)]
    known = [(t, s) for t, s in pairs if s is not None and not isinstance(s, Missing)]
    if len(known) == len(pairs):
        return [elementwise(call.func, call.args, call.kwargs, known, call.results[0])]
    same = name_of(call.func).startswith("eq")
    if other is one:
        return [filled(call.results[0], same, Grade.INVENTED)]
    if isinstance(other, float) and math.isinf(other):
        return [filled(call.results[0], not same, Grade.INVENTED)]
    return [None]


def _unscale(call: Call) -> Sequence[Shadow | None]:
    """Gradients are finite: the flag stays as it is. What they are divided by is known."""
    gradients, flag = call.args[0], call.args[1]
    shadow = call.get(flag)
    value = (
        shadow.value
        if isinstance(shadow, Known) and shadow.kind is Kind.DEFINITE
        else torch.zeros((1,) * flag.dim(), dtype=flag.dtype)
    )
    return [None] * len(gradients) + [Known(value, Grade.INVENTED)]


def _cat(call: Call) -> Sequence[Shadow | None]:
    # An empty tensor of one dimension may stand among any others.
    tensors = [t for t in call.args[0] if t.numel()]
    shadows = [call.get(t) for t in tensors]
    if not tensors or any(s is None for s in shadows):
        return [None]
    if name_of(call.func) == "stack":
        dim = call.dim(call.results[0], 0)
        lifted = []
        for shadow in shadows:
            if isinstance(shadow, Known):
                value = shadow.value.unsqueeze(dim)
                shadow = Known(value, shadow.grade, shadow.kind, shadow.nested)
            lifted.append(shadow)
        ones = [t.unsqueeze(dim) for t in (torch.empty(t.shape, device="meta") for t in tensors)]
        return [of_cat(ones, [s for s in lifted if s is not None], dim)]
    return [of_cat(tensors, [s for s in shadows if s is not None], call.dim(tensors[0], 0))]


def _small(call: Call) -> Sequence[Shadow | None] | None:
    """As computed, where everything is known one by one."""
    pairs = [(t, call.get(t)) for t in tensors_in((*call.args, *call.kwargs.values()))]
    known = [(t, s) for t, s in pairs if s is not None]
    return in_full(call, known) if len(known) == len(pairs) else None


def _topk(call: Call) -> Sequence[Shadow | None]:
    exact = _small(call)
    if exact is not None:
        return exact
    scores = call.args[0]
    if not scores.dim():
        return [None, None]
    number = int(call.argument("k"))
    nested = is_spread(call.get(scores))
    return [None, call.routers.choose(scores, call.dim(scores), number, nested)]


def _best(call: Call) -> Sequence[Shadow | None]:
    """argmax(x, dim) and max(x, dim): the best one."""
    exact = _small(call)
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
    exact = _small(call)
    if exact is not None:
        return exact
    tensor = call.args[0]
    shadow = call.get(tensor)
    order: Shadow | None = None
    if not isinstance(shadow, Categories) and tensor.dim():
        options = tensor.shape[call.dim(tensor)]
        even = torch.full((options,), 1 / options, dtype=torch.float64)
        if options <= MOST_EXPERTS:
            order = Categories(options, even, is_spread(shadow))
    if len(call.results) == 1:
        return [order]
    return [shadow if isinstance(shadow, Categories) else None, order]


def _scatter(call: Call) -> Sequence[Shadow | None]:
    exact = _small(call)
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
        shadow = Known(torch.full((1,) * tensor.dim(), source), Grade.EXACT)
    accumulates = "add" in name_of(call.func) or call.argument("reduce") == "sum"
    dim = call.dim(tensor)
    return [scattered(tensor, call.get(tensor), dim, index, chosen, shadow, accumulates)]


def _index_put(call: Call) -> Sequence[Shadow | None]:
    exact = _small(call)
    if exact is not None:
        return exact
    tensor, indices = call.args[0], call.args[1]
    found = [(d, i, call.get(i)) for d, i in enumerate(indices) if i is not None]
    chosen = [(d, i, s) for d, i, s in found if isinstance(s, Categories)]
    if len(chosen) != 1 or any(i.dtype is torch.bool for _, i, _ in found):
        return [None]
    dim, index, categories = chosen[0]
    assert isinstance(categories, Categories)
    shape = torch.broadcast_shapes(*(i.shape for _, i, _ in found))
    # As many as the indices together address.
    wide = torch.empty(shape, device="meta") if shape != index.shape else index
    source, accumulates = call.shadow("values"), bool(call.argument("accumulate", False))
    return [scattered(tensor, call.get(tensor), dim, wide, categories, source, accumulates)]


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
    exact = _small(call)
    if exact is not None:
        return exact
    tensor = call.args[0]
    shadow = call.get(tensor)
    if not isinstance(shadow, Categories):
        return [None]
    low, high = call.argument("min", 0), call.argument("max", 0)
    counts = histogram(tensor, shadow, int(call.argument("bins", 100)), low, high)
    return [None if counts is None else counted(call.results[0], counts)]


def _pick(call: Call) -> Sequence[Shadow | None]:
    """index, index_select, gather, masked_select of values that are alike wherever one looks."""
    exact = _small(call)
    if exact is not None:
        return exact
    shadow = call.get(call.args[0])
    result = call.results[0]
    if isinstance(shadow, Categories):
        return [shadow]
    if not isinstance(shadow, Known) or shadow.value.numel() != 1:
        return [None]
    value = shadow.value.reshape((1,) * result.dim())
    return [Known(value, shadow.grade, shadow.kind, shadow.nested)]


def _nothing(call: Call) -> Sequence[Shadow | None]:
    return [None] * len(call.results)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros", "zero_"), _constant(0)),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), _constant(1)),
    **dict.fromkeys(("full", "full_like", "new_full", "fill_", "fill"), _constant(None)),
    **dict.fromkeys(("arange", "eye", "linspace", "scalar_tensor", "tril_indices"), _factory),
    **dict.fromkeys(COPIES, _copy),
    "copy_": _copy_into,
    "copy": _copy_into,
    **{name: _finite(answer) for name, answer in FINITE.items()},
    **dict.fromkeys(("eq", "ne"), _compare),
    "_amp_foreach_non_finite_check_and_unscale_": _unscale,
    **dict.fromkeys(("cat", "stack"), _cat),
    "topk": _topk,
    "argmax": _best,
    **dict.fromkeys(("sort", "argsort"), _sort),
    **dict.fromkeys(("scatter", "scatter_", "scatter_add", "scatter_add_"), _scatter),
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), _index_put),
    "histc": _histc,
    **dict.fromkeys(("index", "index_select", "gather"), _pick),
    # Uninitialised, or written by a random number generator: nothing is known.
    **dict.fromkeys(("empty", "empty_like", "empty_strided", "new_empty", "set_"), _nothing),
}
# Emulated vendor kernels of which more is known than their schema says.
VENDOR_RULES: dict[str, Rule] = {"moe_router_fwd": _router, "moe_aux_scores_fwd": _router}
# These make something of nothing known; all other rules need an input that is known.
STARTS = {
    *("zeros", "zeros_like", "new_zeros", "zero_", "ones", "ones_like", "new_ones"),
    *("full", "full_like", "new_full", "fill_", "fill"),
    *("arange", "eye", "linspace", "scalar_tensor", "tril_indices"),
    *COPIES,
    *("copy_", "copy", "topk", "argmax", "sort", "argsort", "max", "cat", "stack"),
    *FINITE,
    *("eq", "ne", "lift_fresh"),
    *VENDOR_RULES,
    "_amp_foreach_non_finite_check_and_unscale_",
}
