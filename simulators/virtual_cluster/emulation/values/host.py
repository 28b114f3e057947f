"""Running operations for real, on the host, below everything that could intercept them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch._ops import OpOverload

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


def name_of(func: OpOverload) -> str:
    """``add`` for ``aten.add.Tensor``."""
    return signature(func).name


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among arguments and within lists of them, in order."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def run(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    substitute: Callable[[torch.Tensor], torch.Tensor],
) -> Any:
    """The operation on the host with every tensor substituted.

    Raises:
        RuntimeError, NotImplementedError, TypeError, ValueError, IndexError: when the host has no
            such operation or the substitutes do not fit it.
    """

    def replaced(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return substitute(value)
        if isinstance(value, (list, tuple)):
            return [replaced(entry) for entry in value]
        if isinstance(value, torch.device):
            return _CPU
        return value

    return func(*[replaced(a) for a in args], **{k: replaced(v) for k, v in kwargs.items()})


# What ``run`` raises when the host cannot do it.
CANNOT = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)
