"""Kernels of vendor libraries that have no model of their own: what they read, write and multiply.

Each is one opaque launch, priced by its bytes (*estimated*), as Triton kernels of the script's own
are. Matrix products inside of it are products of their own before it, so that their arithmetic
counts; a backward pass has two for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

# ``triton::launch`` is what an opaque launch is, whoever wrote the kernel.
from trainscout.simulators.virtual_cluster.emulation.vendor import triton_kernels as _declared
from trainscout.simulators.virtual_cluster.emulation.vendor.gradients import differentiable

assert _declared


@dataclass(frozen=True)
class Product:
    """``batch`` products of ``rows`` x ``inner`` by ``inner`` x ``columns``."""

    batch: int
    rows: int
    columns: int
    inner: int

    def launch(self, like: Tensor) -> None:
        """Where operands are does not matter to its price: one matrix stands for all."""
        sizes = ((self.rows, self.inner), (self.inner, self.columns))
        left, right = (
            torch.empty((1, *size), dtype=like.dtype, device=like.device).expand(self.batch, *size)
            for size in sizes
        )
        torch.bmm(left, right)

    @property
    def backward(self) -> tuple[Product, Product]:
        """Of the gradients of both operands."""
        return (
            replace(self, columns=self.inner, inner=self.columns),
            replace(self, rows=self.inner, inner=self.rows),
        )


@dataclass(frozen=True)
class OpaqueKernel:
    """One kernel: its output's shape and type, the products inside, what backward keeps.

    ``again``: products that the backward pass repeats instead of keeping their results.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    products: tuple[Product, ...] = ()
    again: tuple[Product, ...] = ()
    keeps_output: bool = False


def launch(name: str, written: Sequence[Tensor], read: Sequence[Tensor]) -> None:
    """One launch that nothing is known of but the tensors it is given."""
    with torch._C._AutoDispatchBelowAutograd(), torch.no_grad():
        torch.ops.triton.launch(list(written), list(read), name, [1])


@differentiable
def _opaque(
    form: OpaqueKernel, *tensors: Tensor | None
) -> tuple[Tensor, list[Tensor | None], Callable[..., Any]]:
    given = [each for each in tensors if each is not None]
    for product in form.products:
        product.launch(given[0])
    out = torch.empty(form.shape, dtype=form.dtype, device=given[0].device)
    launch(form.name, [out], given)
    wanted = [each is not None and each.requires_grad for each in tensors]

    def gradient(*given: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, out, grad = given
        kept = [each for each in (grad, *tensors, out) if each is not None]
        backward = [each for product in form.products for each in product.backward]
        for product in (*form.again, *backward):
            product.launch(kept[0])
        grads = [
            torch.empty_like(each) if wants and each is not None else None
            for each, wants in zip(tensors, wanted, strict=True)
        ]
        launch(f"{form.name}_backward", [each for each in grads if each is not None], kept)
        return (None, *grads)

    return out, [*tensors, out if form.keeps_output else None], gradient


def opaque(form: OpaqueKernel, *tensors: Tensor | None) -> Tensor:
    """Launch it, with a gradient for each tensor that wants one."""
    out: Tensor = _opaque(form, *tensors)
    return out


def elementwise(name: str, like: Tensor, *further: Tensor | None) -> Tensor:
    """A kernel whose output is as its first argument."""
    return opaque(OpaqueKernel(name, tuple(like.shape), like.dtype), like, *further)
