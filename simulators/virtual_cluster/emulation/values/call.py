"""One operation as it was called, and running it for real where all of it is known."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch._ops import OpOverload

from . import plain
from .defaults import FOLLOWED_ELEMENTS
from .imbalance import Routers
from .shadow import Grade, Kind, Known, Shadow

_CPU = torch.device("cpu")


class OnHost:
    """Inside, tensors are real and on the CPU: no dispatch mode, no function mode (a script may
    have made ``cuda`` its default device by one), no gradient."""

    def __init__(self) -> None:
        # A stack per thread: backward runs on threads of its own.
        self._open = threading.local()

    def __enter__(self) -> None:
        guards = (torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch())
        for guard in guards:
            guard.__enter__()
        if not hasattr(self._open, "stack"):
            self._open.stack = []
        self._open.stack.append((*guards, torch.is_grad_enabled()))
        torch._C._set_grad_enabled(False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        function, dispatch, gradients = self._open.stack.pop()
        torch._C._set_grad_enabled(gradients)
        dispatch.__exit__(kind, error, trace)
        function.__exit__(kind, error, trace)


on_host = OnHost()


@dataclass(frozen=True)
class Signature:
    """What an operation's schema says about it. ``name`` is ``add`` for ``aten.add.Tensor``.

    ``written``: positions (or names) of the tensor arguments it writes. ``is_view``: it returns
    an alias of its first argument and writes nothing.
    """

    name: str
    written: tuple[int, ...]
    written_keywords: tuple[str, ...]
    is_view: bool
    is_pointwise: bool
    is_random: bool
    is_builtin: bool
    has_dynamic_size: bool


@functools.cache
def signature(func: OpOverload) -> Signature:
    """Read once per operation."""
    written = [
        (position, argument)
        for position, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    aliases = any(r.alias_info is not None for r in func._schema.returns)
    return Signature(
        str(func._schema.name).rpartition("::")[2],
        tuple(position for position, argument in written if not argument.kwarg_only),
        tuple(argument.name for _, argument in written if argument.kwarg_only),
        aliases and not written,
        torch.Tag.pointwise in func.tags,
        torch.Tag.nondeterministic_seeded in func.tags,
        func.namespace in ("aten", "prims"),
        torch.Tag.dynamic_output_shape in func.tags,
    )


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among arguments and within lists of them, in order."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def _replaced(value: Any, substitute: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    # Not nested in its caller: a closure that calls itself would keep its tensors until the
    # garbage collector comes, and so allocated.
    if isinstance(value, torch.Tensor):
        return substitute(value)
    if isinstance(value, (list, tuple)):
        return [_replaced(entry, substitute) for entry in value]
    return _CPU if isinstance(value, torch.device) else value


def _emptied(tensor: torch.Tensor) -> torch.Tensor:
    return plain.empty(0, dtype=tensor.dtype)


# What ``Call.on_host`` raises when the host cannot do it.
CANNOT = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)


@dataclass(frozen=True)
class Call:
    """One operation: how it was called, on what, and what came out (of no data)."""

    func: OpOverload
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    get: Callable[[torch.Tensor], Shadow | None]
    routers: Routers
    results: Sequence[torch.Tensor] = ()

    def on_host(self, substitute: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """The operation on the host with every tensor substituted.

        Raises:
            RuntimeError, NotImplementedError, TypeError, ValueError, IndexError: when the host has
                no such operation or the substitutes do not fit it.
        """
        out = self.signature.written_keywords
        named = {
            # ``out=`` takes whatever size it is given.
            name: _replaced(value, _emptied if name in out else substitute)
            for name, value in self.kwargs.items()
        }
        return self.func(*_replaced(list(self.args), substitute), **named)

    @property
    def name(self) -> str:
        """``add`` for ``aten.add.Tensor``."""
        return self.signature.name

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Among its arguments, in order, those of ``out=`` left out: it does not read them."""
        out = self.signature.written_keywords
        named = (value for name, value in self.kwargs.items() if name not in out)
        return list(tensors_in((*self.args, *named)))

    @property
    def written(self) -> list[torch.Tensor]:
        """The arguments that the operation writes."""
        declared = self.signature
        positions = [self.args[p] for p in declared.written if p < len(self.args)]
        named = (self.kwargs.get(k) for k in declared.written_keywords)
        return list(tensors_in([*positions, *named]))

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
        dim = self.argument("dim", default)
        return int(dim) % tensor.dim() if tensor.dim() else 0


# One shadow per tensor that the operation returns or writes, in that order of its schema.
Rule = Callable[[Call], Sequence[Shadow | None]]


def for_real(
    call: Call, known: Sequence[tuple[torch.Tensor, Shadow | None]]
) -> tuple[Any, Mapping[int, torch.Tensor], Grade] | None:
    """What the operation makes of values known one by one, those values by their tensors' ids, and
    what it is worth; None where they are not, or the host cannot do it."""
    values: dict[int, torch.Tensor] = {}
    grade = Grade.EXACT
    for tensor, shadow in known:
        if not isinstance(shadow, Known) or shadow.kind is not Kind.DEFINITE:
            return None
        # A copy: in-place operations write it, and it may be as compact as ``expand`` makes it.
        values[id(tensor)] = shadow.value.expand(tensor.shape).to(tensor.dtype, copy=True)
        grade = min(grade, shadow.grade)
    try:
        return call.on_host(lambda t: values.get(id(t), t)), values, grade
    except CANNOT:
        return None


def in_full(
    call: Call, known: Sequence[tuple[torch.Tensor, Shadow]]
) -> Sequence[Shadow | None] | None:
    """The operation itself, when all its inputs are known one by one and small."""
    elements = [t.numel() for t, _ in known] + [r.numel() for r in call.results]
    if max(elements) > FOLLOWED_ELEMENTS or not call.signature.is_builtin:
        return None
    computed = for_real(call, known)
    if computed is None:
        return None
    made, values, grade = computed
    written = [values[id(t)] for t in call.written if id(t) in values]
    returned = list(tensors_in([made]))
    # The results of the call are those returned, then those written but not returned.
    fresh = [r for r in written if not any(r is m for m in returned)]
    outcome = [*returned, *fresh][: len(call.results)]
    if [tuple(v.shape) for v in outcome] != [tuple(r.shape) for r in call.results]:
        return None
    return [Known(value, grade) for value in outcome]


def in_full_if_known(call: Call) -> Sequence[Shadow | None] | None:
    """As computed, where everything is known one by one."""
    pairs = [(t, call.get(t)) for t in call.tensors]
    known = [(t, s) for t, s in pairs if s is not None]
    return in_full(call, known) if len(known) == len(pairs) else None


def unless_known(rule: Rule) -> Rule:
    """The rule, where not everything is known one by one; there the operation is computed."""

    def first(call: Call) -> Sequence[Shadow | None]:
        exact = in_full_if_known(call)
        return rule(call) if exact is None else exact

    return first


def in_full_if_written_over(call: Call) -> Sequence[Shadow | None] | None:
    """As computed, where all but the first tensor is known and what that held shows nowhere: a
    permutation is inverted so, into memory that was never written."""
    tensor = call.args[0]
    if call.get(tensor) is not None:
        return None
    others = [(t, call.get(t)) for t in call.tensors if t is not tensor]
    known = [(t, s) for t, s in others if s is not None]
    if len(known) < len(others):
        return None
    made = []
    for held in (0, 1):
        before = Known(plain.full((1,) * tensor.dim(), held, dtype=tensor.dtype), Grade.EXACT)
        found = in_full(call, [(tensor, before), *known])
        if not found or not isinstance(found[0], Known):
            return None
        made.append(found[0])
    return [made[0]] if torch.equal(made[0].value, made[1].value) else None
