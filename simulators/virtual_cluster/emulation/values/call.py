"""One operation as it was called, and running it for real where all of it is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from trainscout.simulators.virtual_cluster.emulation.values.defaults import FOLLOWED_ELEMENTS
from trainscout.simulators.virtual_cluster.emulation.values.host import (
    CANNOT,
    Signature,
    run,
    signature,
    tensors_in,
)
from trainscout.simulators.virtual_cluster.emulation.values.routing import Routers
from trainscout.simulators.virtual_cluster.emulation.values.shadow import (
    Grade,
    Kind,
    Known,
    Shadow,
)


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


# One shadow per tensor that the operation returns or writes, in that order of its schema.
Rule = Callable[[Call], Sequence[Shadow | None]]


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


def in_full_if_known(call: Call) -> Sequence[Shadow | None] | None:
    """As computed, where everything is known one by one."""
    pairs = [(t, call.get(t)) for t in tensors_in((*call.args, *call.kwargs.values()))]
    known = [(t, s) for t, s in pairs if s is not None]
    return in_full(call, known) if len(known) == len(pairs) else None
