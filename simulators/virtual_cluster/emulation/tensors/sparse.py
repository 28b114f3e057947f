"""Sparse tensors on the device, as embeddings' gradients are: their indices and their values.

Each is a fake tensor around a sparse meta tensor; its two parts lie in the device's memory. An
operation on one is what torch's CUDA kernels make of it (``ATen/native/sparse/cuda``), on the
parts: sorted, made unique and summed (coalesce), added to rows of a dense tensor (optimizers),
joined.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.emulation.values.values import Reading
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal

from .device_copies import DeviceCopies
from .fake import meta_kernels, without_data, wrap
from .operations import WRITE, describe

aten = torch.ops.aten

_MAKE = aten._sparse_coo_tensor_with_dims_and_tensors.default
_EMBEDDING_BAG = aten._embedding_bag_backward.default
_TO_SPARSE = (aten._to_sparse.default, aten._to_sparse.sparse_dim, aten._to_sparse_csr.default)
_OF_ROWS = aten.sparse_compressed_tensor.comp_plain_value_size
_LAYOUTS = (torch.sparse_coo, torch.sparse_csr)
# What the meta tensor inside knows itself.
_META_ATTRIBUTES = (
    "_nnz",
    "_dimI",
    "_dimV",
    "sparse_dim",
    "dense_dim",
    "is_coalesced",
    "is_same_size",
)
# Done to values as they are; what else is done value by value, or sums them up, is done to sums.
_LINEAR = ("mul", "div", "neg", "zero", "clone", "to_copy", "empty_like", "zeros_like")


class SparseTensors:
    """Answers operations that make or take sparse tensors of the device."""

    def __init__(self, state: RankState, copies: DeviceCopies) -> None:
        self._state, self._copies = state, copies
        # Nobody is asked for a layout before there is one.
        self._any = False

    def takes(self, func: Any, tensors: Any, args: Any) -> bool:
        """Whether this operation makes or takes a sparse tensor of the device."""
        if func is _MAKE or (func is _EMBEDDING_BAG and args[9]):
            return True
        if func is _OF_ROWS or func in _TO_SPARSE:
            return any(isinstance(each, FakeTensor) for each in tensors)
        requested = self._any or func is aten._to_copy.default
        return requested and any(each.layout in _LAYOUTS for each in tensors)

    def answer(self, func: Any, tensors: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation on the parts, which the device's mode sees."""
        if func is _MAKE:
            coalesced = kwargs.get("is_coalesced")
            return self._made(args[3], args[4], tuple(args[2]), coalesced=bool(coalesced))
        if func is _EMBEDDING_BAG:
            # Without the rows of the maximum and the flag that brought it here.
            kept = (*args[:5], *args[6:9], *args[10:])
            return aten._embedding_bag_sparse_backward.default(*kept)
        if func._can_decompose():
            return func.decompose(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        if name in _META_ATTRIBUTES:
            with meta_kernels(self._state.dataless):
                return func(*args, **kwargs)
        rule: Callable[..., Any] | None = getattr(self, f"_rule_{name.lstrip('_')}", None)
        if rule is not None:
            return rule(*args, **kwargs)
        by_values = torch.Tag.pointwise in func.tags or torch.Tag.reduction in func.tags
        if len(tensors) == 1 and (by_values or name.strip("_") in (*_LINEAR, "norm", "sum")):
            return self._by_values(func, name.strip("_"), args, kwargs)
        raise refusal(str(func), "operation on sparse tensors without a rule")

    def _by_values(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """An operation of one tensor, done to its values."""
        kwargs = {key: value for key, value in kwargs.items() if key != "layout"}
        if args[0].layout is torch.sparse_csr:
            return self._by_values_of_rows(func, args, kwargs)
        source = args[0] if name in _LINEAR else self._rule_coalesce(args[0])
        indices, values = self._parts(source)
        made = func(values, *args[1:], **kwargs)
        if describe(func).kind == WRITE:
            return args[0] if source is args[0] else self._becomes(args[0], source)
        if not isinstance(made, torch.Tensor) or made.shape != values.shape:
            return made
        coalesced = aten.is_coalesced.default(source)
        return self._made(indices.to(made.device), made, tuple(source.shape), coalesced=coalesced)

    def _by_values_of_rows(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The same of a matrix by rows, whose elements are summed already."""
        values = args[0].values()
        made = func(values, *args[1:], **kwargs)
        if describe(func).kind == WRITE:
            return args[0]
        if not isinstance(made, torch.Tensor) or made.shape != values.shape:
            return made
        starts, columns = (
            part.to(made.device) for part in (args[0].crow_indices(), args[0].col_indices())
        )
        return self._by_rows(starts, columns, made, tuple(args[0].shape))

    def _of_one_kind(self, indices: Any, values: Any) -> tuple[Any, Any]:
        """Of the host, where only one was too much to hold: values are filled in where known."""
        if isinstance(indices, FakeTensor) == isinstance(values, FakeTensor):
            return indices, values
        if isinstance(indices, FakeTensor):
            return indices, without_data(self._state.dataless, values)
        reading = self._state.values.read(values, "sparse values")
        if reading.grade != "exact":
            return without_data(self._state.dataless, indices), values
        return indices, reading.value.expand(values.shape).to(values.dtype, copy=True)

    def _parts(self, tensor: torch.Tensor) -> tuple[Any, Any]:
        """Places and values of elements; of rows in compressed form their columns' places."""
        mode, device = self._state.dataless, tensor.device
        if tensor.layout is torch.sparse_csr:
            rows = torch._convert_indices_from_csr_to_coo(
                tensor.crow_indices(), tensor.col_indices()
            )
            return rows, tensor.values()
        if not isinstance(tensor, FakeTensor):
            return aten._indices.default(tensor), aten._values.default(tensor)
        with meta_kernels(mode):
            parts = aten._indices.default(tensor), aten._values.default(tensor)
        return wrap(mode, parts[0], device), wrap(mode, parts[1], device)

    def _made(self, indices: Any, values: Any, size: tuple[int, ...], *, coalesced: bool) -> Any:
        indices, values = self._of_one_kind(indices, values)
        parts = (indices.shape[0], values.dim() - 1, size, indices, values)
        named = {"layout": torch.sparse_coo, "is_coalesced": coalesced}
        return self._made_by(_MAKE, parts, values, named)

    def _made_by(self, make: Any, parts: Any, values: Any, named: dict[str, Any]) -> Any:
        """A sparse tensor of these values; of no data where those have none."""
        self._any = True
        named["dtype"] = values.dtype
        if not isinstance(values, FakeTensor):
            return make(*parts, **named, device=values.device)
        with meta_kernels(self._state.dataless):
            meta = make(*parts, **named, device=torch.device("meta"))
        return wrap(self._state.dataless, meta, values.device)

    def _rule_to_sparse_csr(self, tensor: Any, dense_dim: int | None = None) -> Any:
        """A matrix by rows: as many elements as it has in coordinates."""
        if tensor.layout is torch.sparse_csr:
            return tensor
        if dense_dim or tensor.dim() != 2:
            raise refusal("to_sparse_csr", "of a tensor that is no matrix")
        strided = tensor.layout is not torch.sparse_coo
        found = self._rule_to_sparse(tensor) if strided else self._rule_coalesce(tensor)
        (rows, columns), values = self._parts(found)
        starts = torch._convert_indices_from_coo_to_csr(rows, tensor.shape[0])
        return self._by_rows(starts, columns, values, tuple(tensor.shape))

    def _rule_sparse_compressed_tensor(
        self, starts: Any, columns: Any, values: Any, size: Any, *, layout: Any = None, **_: Any
    ) -> Any:
        if layout is not torch.sparse_csr:
            raise refusal("sparse_compressed_tensor", f"the layout {layout}")
        return self._by_rows(starts, columns, values, tuple(size))

    def _by_rows(self, starts: Any, columns: Any, values: Any, size: tuple[int, ...]) -> Any:
        make, named = aten._sparse_csr_tensor_unsafe.default, {"layout": torch.sparse_csr}
        return self._made_by(make, (starts, columns, values, size), values, named)

    def _rule_crow_indices(self, tensor: Any) -> Any:
        return self._member(aten.crow_indices.default, tensor)

    def _rule_col_indices(self, tensor: Any) -> Any:
        return self._member(aten.col_indices.default, tensor)

    def _member(self, func: Any, tensor: Any) -> Any:
        with meta_kernels(self._state.dataless):
            part = func(tensor)
        return wrap(self._state.dataless, part, tensor.device)

    def _becomes(self, tensor: Any, other: Any) -> Any:
        tensor.data = other
        return tensor

    def _rule_indices(self, tensor: Any) -> Any:
        return self._parts(tensor)[0]

    def _rule_values(self, tensor: Any) -> Any:
        if tensor.layout is torch.sparse_csr:
            return self._member(aten.values.default, tensor)
        return self._parts(tensor)[1]

    def _rule_detach(self, tensor: Any) -> Any:
        if tensor.layout is torch.sparse_csr:
            return self._by_values_of_rows(aten.detach.default, (tensor,), {})
        coalesced = aten.is_coalesced.default(tensor)
        return self._made(*self._parts(tensor), tuple(tensor.shape), coalesced=coalesced)

    _rule_alias = _rule_detach

    def _rule_coalesced_(self, tensor: Any, coalesced: bool) -> Any:
        with meta_kernels(self._state.dataless):
            aten._coalesced_.default(tensor, coalesced)
        return tensor

    def _rule_coalesce(self, tensor: Any) -> Any:
        """Sorted, made unique (of a length that the host waits for), and summed."""
        if aten.is_coalesced.default(tensor):
            return tensor
        indices, values = self._parts(tensor)
        size = tuple(tensor.shape)
        if values.shape[0] > 1:
            sizes = size[: indices.shape[0]]
            ordered, _ = _flat(indices, sizes).sort()
            unique, places = torch.unique_consecutive(ordered, return_inverse=True)
            values, summands = values.new_empty((unique.shape[0], *values.shape[1:])), values
            values.index_add_(0, places, summands)
            indices = _unflat(unique, sizes)
        return self._made(indices, values, size, coalesced=True)

    def _rule_add(self, left: Any, right: Any, alpha: Any = 1) -> Any:
        """Rows are added to a dense tensor; two sparse ones are joined."""
        if left.layout is not torch.sparse_coo:
            return self._into_dense(left.clone(), right, alpha)
        if right.layout is not torch.sparse_coo:
            return self._into_dense(right if alpha == 1 else right * alpha, left, 1)
        first, second = self._parts(left), self._parts(right)
        values = second[1] if alpha == 1 else second[1] * alpha
        joined = torch.cat((first[0], second[0]), 1), torch.cat((first[1], values))
        return self._made(*joined, tuple(left.shape), coalesced=False)

    def _rule_add_(self, left: Any, right: Any, alpha: Any = 1) -> Any:
        if left.layout is not torch.sparse_coo:
            return self._into_dense(left, right, alpha)
        return self._becomes(left, self._rule_add(left, right, alpha))

    def _rule_sub(self, left: Any, right: Any, alpha: Any = 1) -> Any:
        return self._rule_add(left, right, -alpha)

    def _rule_sub_(self, left: Any, right: Any, alpha: Any = 1) -> Any:
        return self._rule_add_(left, right, -alpha)

    def _into_dense(self, dense: Any, sparse: Any, alpha: Any) -> Any:
        indices, values = self._parts(sparse)
        if alpha != 1 and not aten.is_coalesced.default(sparse):
            # Only the kernel for unique rows scales as it adds.
            values, alpha = values * alpha, 1
        sizes = tuple(sparse.shape)[: indices.shape[0]]
        rows = dense.view(math.prod(sizes), *sparse.shape[indices.shape[0] :])
        rows.index_add_(0, _flat(indices, sizes), values, alpha=alpha)
        return dense

    def _rule_copy_(self, tensor: Any, source: Any, non_blocking: bool = False) -> Any:
        if source.layout is not torch.sparse_coo:
            raise refusal("copy_", "a dense tensor into a sparse one")
        return self._becomes(tensor, self._rule_detach(source.clone()))

    def _rule_sparse_mask(self, dense: Any, mask: Any) -> Any:
        indices, _ = self._parts(mask)
        sizes = tuple(mask.shape)[: indices.shape[0]]
        rows = dense.view(math.prod(sizes), *mask.shape[indices.shape[0] :])
        found = rows.index_select(0, _flat(indices, sizes))
        coalesced = aten.is_coalesced.default(mask)
        return self._made(indices.clone(), found, tuple(mask.shape), coalesced=coalesced)

    def _rule_to_dense(self, tensor: Any, dtype: Any = None, masked_grad: Any = None) -> Any:
        values = self._parts(tensor)[1]
        dense = values.new_zeros(tuple(tensor.shape), dtype=dtype or values.dtype)
        return self._into_dense(dense, tensor, 1)

    def _rule_to_sparse(
        self, tensor: Any, sparse_dim: int | None = None, *, layout: Any = None, **named: Any
    ) -> Any:
        """The places that are not zero: as many as flags of unknown values are taken to set."""
        if layout not in (None, torch.sparse_coo) or named.get("blocksize") is not None:
            raise refusal("to_sparse", f"the layout {layout}")
        if tensor.layout is torch.sparse_csr:
            return self._made(*self._parts(tensor), tuple(tensor.shape), coalesced=True)
        last = sparse_dim or tensor.dim() - (named.get("dense_dim") or 0)
        flags = tensor != 0
        flags = flags.flatten(last).any(-1) if last < tensor.dim() else flags
        indices = flags.nonzero().t()
        return self._made(indices, tensor[tuple(indices)], tuple(tensor.shape), coalesced=True)

    def _rule_unbind(self, tensor: Any, dim: int = 0) -> Any:
        return [tensor.select(dim, index) for index in range(tensor.shape[dim])]

    def _rule_select(self, tensor: Any, dim: int, index: int) -> Any:
        indices, values = self._parts(tensor)
        dim %= tensor.dim()
        sizes = (*tensor.shape[:dim], *tensor.shape[dim + 1 :])
        coalesced = aten.is_coalesced.default(tensor)
        if dim >= len(indices):
            kept = values.select(dim - len(indices) + 1, index)
            return self._made(indices, kept, sizes, coalesced=coalesced)
        found = (indices[dim] == index % tensor.shape[dim]).nonzero().flatten()
        return self._without(dim, indices[:, found], values[found], sizes, coalesced=coalesced)

    def _rule_index_select(self, tensor: Any, dim: int, index: Any) -> Any:
        """Each element as often as its place is asked for, which a search in sorted places finds
        (``index_select_sparse_cuda``); of how many the host waits to learn."""
        indices, values = self._parts(tensor)
        dim %= tensor.dim()
        size = (*tensor.shape[:dim], len(index), *tensor.shape[dim + 1 :])
        if dim >= len(indices):
            found = values.index_select(dim - len(indices) + 1, index)
            coalesced = aten.is_coalesced.default(tensor)
            return self._made(indices, found, size, coalesced=coalesced)
        ordered, order = index.sort()
        places = indices[dim].contiguous()
        first = torch.searchsorted(ordered, places)
        times = torch.searchsorted(ordered, places, right=True) - first
        reading = self._state.values.read(times.sum(), "elements selected")
        if reading.grade != "exact":
            number = round(len(values) * len(index) / tensor.shape[dim])
            reading = Reading(torch.tensor(number), "expected")
        self._copies.note_size(aten.index_select.default, reading, None)
        length = int(reading.value)
        kept = torch.repeat_interleave(times, output_size=length)
        which = torch.arange(length, device=kept.device) - (times.cumsum(0) - times)[kept]
        chosen = order[first[kept] + which]
        indices = torch.cat((indices[:dim, kept], chosen[None], indices[dim + 1 :, kept]))
        return self._made(indices, values[kept], size, coalesced=False)

    def _without(
        self, dim: int, indices: Any, values: Any, sizes: tuple[int, ...], *, coalesced: bool
    ) -> Any:
        """Of these elements what is left without one sparse dimension: dense without any."""
        if len(indices) == 1:
            return values.sum(0)
        indices = torch.cat((indices[:dim], indices[dim + 1 :]))
        return self._made(indices, values, sizes, coalesced=coalesced)

    def _rule_sum(
        self, tensor: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None
    ) -> Any:
        if keepdim:
            raise refusal("sum", "of a sparse tensor with keepdim")
        if dim is None:
            return self._by_values(aten.sum.default, "sum", (tensor,), {"dtype": dtype})
        for each in sorted((each % tensor.dim() for each in dim), reverse=True):
            indices, values = self._parts(tensor)
            sizes = (*tensor.shape[:each], *tensor.shape[each + 1 :])
            if each < len(indices):
                tensor = self._without(each, indices, values, sizes, coalesced=False)
            else:
                values = values.sum(each - len(indices) + 1, dtype=dtype)
                coalesced = aten.is_coalesced.default(tensor)
                tensor = self._made(indices, values, sizes, coalesced=coalesced)
        return tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor

    def _rule_sparse_sum(self, tensor: Any, dim: Any = None, dtype: Any = None) -> Any:
        return self._rule_sum(tensor, dim, dtype=dtype)

    def _rule_sparse_softmax(self, tensor: Any, dim: int, half_to_float: bool = False) -> Any:
        """Of the elements of each row, sorted into rows first."""
        found = self._rule_coalesce(tensor)
        indices, values = self._parts(found)
        return self._made(indices, values.exp(), tuple(tensor.shape), coalesced=True)

    def _rule_sparse_softmax_backward_data(
        self, grad: Any, output: Any, dim: int, tensor: Any
    ) -> Any:
        indices, values = self._parts(output)
        made = values * self._parts(grad)[1]
        return self._made(indices, made, tuple(tensor.shape), coalesced=True)

    _rule_sparse_log_softmax = _rule_sparse_softmax
    _rule_sparse_log_softmax_backward_data = _rule_sparse_softmax_backward_data

    def _rule_unsqueeze(self, tensor: Any, dim: int) -> Any:
        indices, values = self._parts(tensor)
        dim %= tensor.dim() + 1
        if dim > len(indices):
            values = values.unsqueeze(dim - len(indices) + 1)
        else:
            at = torch.zeros_like(indices[:1])
            indices = torch.cat((indices[:dim], at, indices[dim:]))
        sizes = (*tensor.shape[:dim], 1, *tensor.shape[dim:])
        return self._made(indices, values, sizes, coalesced=aten.is_coalesced.default(tensor))

    def _rule_stack(self, tensors: Any, dim: int = 0) -> Any:
        return torch.cat([each.unsqueeze(dim) for each in tensors], dim)

    def _rule_cat(self, tensors: Any, dim: int = 0) -> Any:
        parts = [self._parts(each) for each in tensors]
        dim %= tensors[0].dim()
        if dim >= len(parts[0][0]):
            raise refusal("cat", "of sparse tensors along a dense dimension")
        length, moved = 0, []
        for each, (rows, _) in zip(tensors, parts, strict=True):
            moved.append(torch.cat((rows[:dim], rows[dim : dim + 1] + length, rows[dim + 1 :])))
            length += each.shape[dim]
        sizes = (*tensors[0].shape[:dim], length, *tensors[0].shape[dim + 1 :])
        values = torch.cat([values for _, values in parts])
        return self._made(torch.cat(moved, 1), values, sizes, coalesced=False)

    def _rule_mul(self, left: Any, right: Any) -> Any:
        """Where the sparse one is; of two where both are, found by a search in sorted places."""
        if not isinstance(right, torch.Tensor) or right.dim() == 0:
            return self._by_values(aten.mul.Tensor, "mul", (left, right), {})
        if left.layout is not torch.sparse_coo:
            left, right = right, left
        size = tuple(left.shape)
        if right.layout is not torch.sparse_coo:
            right = self._rule_sparse_mask(right.expand(size).contiguous(), left)
            (indices, values), (_, others) = self._parts(left), self._parts(right)
            return self._made(indices, values * others, size, coalesced=False)
        (indices, values), (places, others) = (
            self._parts(self._rule_coalesce(each)) for each in (left, right)
        )
        first, second = (_flat(each, size[: len(indices)]) for each in (indices, places))
        here = torch.isin(first, second, assume_unique=True).nonzero().flatten()
        there = torch.searchsorted(second, first[here])
        return self._made(indices[:, here], values[here] * others[there], size, coalesced=True)

    def _rule_mm(self, left: Any, right: Any) -> Any:
        """cuSPARSE's product of a sparse and a dense matrix: one launch, priced by its bytes."""
        from trainscout.simulators.virtual_cluster.emulation.vendor.opaque import launch

        if left.layout not in _LAYOUTS:
            # As PyTorch's _sparse_mm: cuSPARSE has the sparse matrix on the left alone.
            return self._rule_mm(self._rule_coalesce(self._rule_t(right)), left.t()).t()
        if right.layout in _LAYOUTS:
            (first, values), (second, others) = self._parts(left), self._parts(right)
            size, places = (left.shape[0], right.shape[1]), left.shape[0] * right.shape[1]
            # As many elements meet as in the mean, anywhere; the host waits for how many places.
            pairs = first.shape[1] * second.shape[1] / left.shape[1]
            number = round(-places * math.expm1(-pairs / places))
            self._copies.note_size(
                aten.mm.default, Reading(torch.tensor(number), "expected"), None
            )
            indices, made = first.new_empty((2, number)), values.new_empty((number,))
            launch("sparse_mm", [indices, made], [first, values, second, others])
            found = self._made(indices, made, size, coalesced=True)
            return found if left.layout is torch.sparse_coo else self._rule_to_sparse_csr(found)
        out = right.new_empty((left.shape[0], right.shape[1]))
        launch("sparse_mm", [out], [*self._parts(left), right])
        return out

    _rule_sparse_sparse_matmul = _rule_mm

    def _rule_sparse_addmm(
        self, _: Any, left: Any, right: Any, beta: Any = 1, alpha: Any = 1
    ) -> Any:
        if beta != 0 or alpha != 1:
            raise refusal("addmm", "of a sparse matrix: only plain products")
        return self._rule_mm(left, right)

    def _rule_t(self, tensor: Any) -> Any:
        return self._rule_transpose(tensor, 0, 1)

    def _rule_transpose(self, tensor: Any, first: int, second: int) -> Any:
        indices, values = self._parts(tensor)
        if first == second or len(indices) != 2 or values.dim() > 1:
            raise refusal("transpose", "of a sparse tensor that is no matrix")
        return self._made(
            indices.flip(0), values.clone(), tuple(tensor.shape)[::-1], coalesced=False
        )


def _flat(indices: Any, sizes: tuple[int, ...]) -> Any:
    """One number for the place in the sparse dimensions."""
    flat = indices[0]
    for row, size in zip(indices[1:], sizes[1:], strict=True):
        flat = flat * size + row
    return flat


def _unflat(flat: Any, sizes: tuple[int, ...]) -> Any:
    rows = []
    for size in reversed(sizes[1:]):
        rows.append(flat % size)
        flat = flat // size
    return torch.stack([flat, *reversed(rows)]) if rows else flat[None]
