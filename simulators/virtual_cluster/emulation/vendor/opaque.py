"""Kernels of vendor libraries that have no model of their own: what they read, write and multiply.

Each is one opaque launch, priced by its bytes (*estimated*), as Triton kernels of the script's own
are. Matrix products inside of it are products of their own before it, so that their arithmetic
counts; a backward pass has two for each.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# ``triton::launch`` is what an opaque launch is, whoever wrote the kernel.
from . import triton_kernels as _declared


def differentiable(compute: Callable[..., tuple[Any, Sequence[Any], Callable[..., Any]]]) -> Any:
    """Let autograd use ``compute``, which returns outputs, what it keeps, and the gradient.

    The gradient is called with what was kept and then with the outputs' gradients; it returns
    those of the first arguments, the others have none. It may remember anything but tensors: those
    are kept, so that they are freed when they have been used.
    """

    def call(*arguments: Any, **named: Any) -> Any:
        if named:
            arguments = inspect.signature(compute).bind(*arguments, **named).args
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


assert _declared


@dataclass(frozen=True)
class Product:
    """``batch`` products of ``rows`` x ``inner`` by ``inner`` x ``columns``, whose operands lie as
    ``layout`` says: those of a linear layer's forward pass (TN), unless it is said."""

    batch: int
    rows: int
    columns: int
    inner: int
    layout: str = "TN"

    def launch(self, like: Tensor) -> None:
        """Where operands are does not matter to its price: one matrix stands for all."""

        def operand(rows: int, columns: int, *, turned: bool) -> Tensor:
            size = (1, columns, rows) if turned else (1, rows, columns)
            made = torch.empty(size, dtype=like.dtype, device=like.device)
            return (made.mT if turned else made).expand(self.batch, rows, columns)

        left = operand(self.rows, self.inner, turned=self.layout == "NT")
        torch.bmm(left, operand(self.inner, self.columns, turned=self.layout == "TN"))

    @property
    def backward(self) -> tuple[Product, Product]:
        """Of the gradients of both operands, as a linear layer has them."""
        b, m, n, k = self.batch, self.rows, self.columns, self.inner
        return Product(b, m, k, n, "NN"), Product(b, n, k, m, "NT")


@dataclass(frozen=True)
class OpaqueKernel:
    """One kernel: its output's shape and type, the products inside, what backward keeps.

    ``again``: products that the backward pass repeats instead of keeping their results;
    ``remade``: places of inputs that it makes again instead of keeping them; ``ungated``: what it
    keeps is its output before a gate, a tensor of its own.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    products: tuple[Product, ...] = ()
    again: tuple[Product, ...] = ()
    keeps_output: bool = False
    remade: tuple[int, ...] = ()
    ungated: bool = False


def launch(name: str, written: Sequence[Tensor | None], read: Sequence[Tensor | None]) -> None:
    """One launch that nothing is known of but the tensors it is given; None is none."""
    tensors = [[each for each in side if each is not None] for side in (written, read)]
    with torch._C._AutoDispatchBelowAutograd(), torch.no_grad():
        torch.ops.triton.launch(*tensors, name, [1])


def writes(name: str, *places: int) -> Callable[..., None]:
    """A kernel that writes its arguments at these places and reads the other tensors."""

    def function(*arguments: Any, **options: Any) -> None:
        values = [_tensors(each) for each in (*arguments, *options.values())]
        written = [part for place in places for part in values[place]]
        others = (each for place, each in enumerate(values) if place not in places)
        launch(name, written, [part for each in others for part in each])

    return function


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.numel() else []
    if isinstance(value, (list, tuple)):
        return [part for each in value for part in _tensors(each)]
    return []


def install_element_kernels() -> None:
    """Let what ``torch.cuda.jiterator`` compiles be opaque: one launch over all elements."""

    def run(
        code: str, name: str, by_reference: bool, count: int, tensors: Any, numbers: Any
    ) -> Any:
        shape = torch.broadcast_shapes(*(each.shape for each in tensors))
        dtype = functools.reduce(torch.promote_types, (each.dtype for each in tensors))
        like = next((each for each in tensors if each.shape == shape), tensors[0].expand(shape))
        made = [torch.empty_like(like, dtype=dtype) for _ in range(count)]
        launch(name, made, tensors)
        return made[0] if count == 1 else tuple(made)

    torch._C._cuda_jiterator_compile_and_launch_kernel = run


@differentiable
def _opaque(
    form: OpaqueKernel, *tensors: Tensor | None
) -> tuple[Tensor, list[Tensor | None], Callable[..., Any]]:
    present = [each for each in tensors if each is not None]
    for product in form.products:
        product.launch(present[0])
    out = torch.empty(form.shape, dtype=form.dtype, device=present[0].device)
    read_back = torch.empty_like(out) if form.ungated else out
    launch(form.name, [out, read_back] if form.ungated else [out], present)
    wanted = [
        (each.shape, each.dtype) if each is not None and each.requires_grad else None
        for each in tensors
    ]
    held = [None if place in form.remade else each for place, each in enumerate(tensors)]
    again = [
        (each.shape, each.dtype) for place in form.remade if (each := tensors[place]) is not None
    ]

    def gradient(*args: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, out, grad = args
        kept = [each for each in (grad, *tensors, out) if each is not None]
        for shape, dtype in again:
            kept.append(torch.empty(shape, dtype=dtype, device=kept[0].device))
            launch(f"{form.name}_input_again", kept[-1:], kept[-1:])
        backward = [each for product in form.products for each in product.backward]
        for product in (*form.again, *backward):
            product.launch(kept[0])
        grads = [
            None if each is None else torch.empty(each[0], dtype=each[1], device=kept[0].device)
            for each in wanted
        ]
        launch(f"{form.name}_backward", grads, kept)
        return (None, *grads)

    return out, [*held, read_back if form.keeps_output else None], gradient


def opaque(form: OpaqueKernel, *tensors: Tensor | None) -> Tensor:
    """Launch it, with a gradient for each tensor that wants one."""
    return _opaque(form, *tensors)


def elementwise(name: str, like: Tensor, *further: Tensor | None) -> Tensor:
    """A kernel whose output is as its first argument."""
    return opaque(OpaqueKernel(name, tuple(like.shape), like.dtype), like, *further)
