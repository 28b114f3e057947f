"""Functions with their gradient beside them, for what stands in for a library's own Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def differentiable(compute: Callable[..., tuple[Any, Sequence[Any], Callable[..., Any]]]) -> Any:
    """Let autograd use ``compute``, which returns outputs, what it keeps, and the gradient.

    The gradient is called with what was kept and then with the outputs' gradients; it returns
    those of the first arguments, the others have none. It may remember anything but tensors: those
    are kept, so that they are freed when they have been used.
    """

    def call(*arguments: Any) -> Any:
        return _Differentiable.apply(compute, *arguments)

    # Libraries offer some of them as autograd functions, and callers look up their arguments.
    call.apply, call.forward = call, compute  # type: ignore[attr-defined]
    call.__name__, call.__doc__ = compute.__name__, compute.__doc__
    return call


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Any], *arguments: Any) -> Any:
        outputs, kept, ctx.gradient = compute(*arguments)
        ctx.save_for_backward(*kept)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        made = ctx.gradient(*ctx.saved_tensors, *gradients)
        made = made if isinstance(made, tuple) else (made,)
        return (None, *made, *[None] * (len(ctx.needs_input_grad) - 1 - len(made)))
