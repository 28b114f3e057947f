"""User buffers: tensor-parallel communication in pieces beside pieces of the products.

A gather runs around a ring: each piece that has come is multiplied while the next one comes. A
scatter runs in a few pieces, each summed over ranks while the next is multiplied. In bulk, one
communication runs beside one product. The library moves pieces by its own copies over NVLink; here
they are sends, receives and reduce-scatters of the same bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel

from .enumerations import CommOverlapType
from .quantized import plain


class Form(NamedTuple):
    """How a product is called, and the type of its result."""

    layout: str
    use: str
    recipe: str
    dtype: torch.dtype


class CommOverlapHelper:
    """The ranks that share buffers: those of ``intra_node_group`` where it is given."""

    def __init__(self, world_group: Any = None, intra_node_group: Any = None) -> None:
        self.group = intra_node_group if intra_node_group is not None else world_group


class CommOverlapCore:
    """Base of the buffers."""


class CommOverlapBase(CommOverlapCore):
    """Base of buffers whose pieces are summed over all ranks at once."""


class CommOverlap(CommOverlapBase):
    """A buffer of ``buffer_shape`` (tokens, width) that ranks gather into or scatter from."""

    in_a_ring = False

    def __init__(
        self,
        buffer_shape: Any,
        buffer_dtype: torch.dtype,
        helper: CommOverlapHelper,
        tp_size: int,
        *rest: Any,
        num_splits: int = 3,
        **options: Any,
    ) -> None:
        self.group = helper.group
        self._buffer = torch.empty(tuple(buffer_shape), dtype=buffer_dtype, device="cuda")
        self._size, self._pieces = tp_size, num_splits

    @property
    def _rank(self) -> int:
        return int(dist.get_rank(self.group))

    def set_buffer_params(self, quantizer: Any) -> None:
        """How the buffer is scaled, which costs nothing."""

    def with_cublasmp(self) -> bool:
        """Whether another library moves the pieces."""
        return False

    def is_atomic_gemm(self) -> bool:
        """Whether one product waits for pieces inside; none does here."""
        return False

    def is_p2p_overlap(self) -> bool:
        return self.in_a_ring

    def is_fp8_ubuf(self) -> bool:
        return bool(self._buffer.element_size() == 1)

    def get_communication_stream(self) -> tuple[Any, Any]:
        """Where sends and receives run."""
        return torch.cuda.current_stream(), torch.cuda.current_stream()

    def _local(self, whole: Tensor) -> Tensor:
        return whole.chunk(self._size)[self._rank]

    def copy_into_buffer(self, input: Any, *args: Any, **named: Any) -> None:
        """Put this rank's share, or everything, where it is sent from."""
        data = plain(input)
        local, _, _ = _chunk_shape_quantizer((*args, *named.values()))
        target = self._local(self._buffer) if local else self._buffer
        target.view(-1)[: data.numel()].view(data.dtype).copy_(data.reshape(-1))

    def get_buffer(self, *args: Any, **named: Any) -> Any:
        """The buffer, or this rank's share of it, in the shape and few bits asked for."""
        local, shape, quantizer = _chunk_shape_quantizer((*args, *named.values()))
        part = self._local(self._buffer) if local else self._buffer
        # A new tensor each time: the library drops the data of those that it is done with.
        shape = part.shape if shape is None else shape
        part = part.view(-1)[: shape.numel()].view(shape)
        if quantizer is None or not self.is_fp8_ubuf():
            return part
        return quantizer.create_tensor_from_data(part, internal=quantizer.internal)

    def start_bulk(self, comm_type: Any, extra_output: Tensor | None) -> Any:
        """The communication that runs beside a product."""
        if comm_type == CommOverlapType.AG:
            return dist.all_gather_into_tensor(
                self._buffer, self._local(self._buffer), group=self.group, async_op=True
            )
        out = self._local(self._buffer) if extra_output is None else extra_output
        return dist.reduce_scatter_tensor(
            out.view(-1), self._buffer.view(-1), group=self.group, async_op=True
        )

    def multiply_gathered(
        self, rows: Tensor, factor: Tensor, how: Form, out: Tensor | None, copy: Tensor | None
    ) -> Tensor:
        """Product of the rows of all ranks, which lie in the buffer."""
        whole = rows.view(-1, rows.shape[-1])
        out = _product_out(rows, factor, how) if out is None else out
        count, pieces = self._size, whole.chunk(self._size)
        products = out.view(-1, out.shape[-1]).chunk(count)
        ranks = dist.get_process_group_ranks(self.group)
        after, before = ranks[(self._rank + 1) % count], ranks[(self._rank - 1) % count]
        for step in range(count):
            here, coming = (self._rank - step) % count, (self._rank - step - 1) % count
            requests = self._exchange(
                pieces[here], after, pieces[coming], before, step < count - 1
            )
            kernel("gemm_into")(pieces[here], factor, products[here], *how[:2], False, how.recipe)
            for request in requests:
                request.wait()
        if copy is not None:
            copy.view(-1).copy_(rows.view(-1)[: copy.numel()])
        return out

    def _exchange(
        self, sent: Tensor, after: int, coming: Tensor, before: int, wanted: bool
    ) -> list[Any]:
        if not wanted:
            return []
        operations = [
            dist.P2POp(dist.isend, sent, after, self.group),
            dist.P2POp(dist.irecv, coming, before, self.group),
        ]
        return list(dist.batch_isend_irecv(operations))

    def multiply_scattered(
        self, rows: Tensor, factor: Tensor, how: Form, out: Tensor | None, share: Tensor
    ) -> Tensor:
        """Product of all rows in the buffer, summed over ranks; ``share`` is this rank's."""
        out = _product_out(rows, factor, how) if out is None else out
        left = rows.view(-1, rows.shape[-1])
        held = self._buffer.view(-1)[: out.numel()].view(left.shape[0], -1)
        pieces = self._size if self.in_a_ring else self._pieces
        works = []
        for part, product, kept in zip(
            left.chunk(pieces),
            held.chunk(pieces),
            share.view(-1, share.shape[-1]).chunk(pieces),
            strict=True,
        ):
            kernel("gemm_into")(part, factor, product, *how[:2], False, how.recipe)
            works.append(
                dist.reduce_scatter_tensor(kept, product, group=self.group, async_op=True)
            )
        for work in works:
            work.wait()
        return out


def _product_out(rows: Tensor, factor: Tensor, how: Form) -> Tensor:
    width = factor.shape[0] if how.layout == "TN" else factor.shape[1]
    return torch.empty((*rows.shape[:-1], width), dtype=how.dtype, device="cuda")


def _chunk_shape_quantizer(arguments: Any) -> tuple[bool, torch.Size | None, Any]:
    """Local chunk, shape and quantizer, which versions have in different places."""
    local, shape, quantizer = False, None, None
    for each in arguments:
        if isinstance(each, bool):
            local = each
        elif isinstance(each, (list, tuple)):
            shape = torch.Size(each)
        elif each is not None:
            quantizer = each
    return local, shape, quantizer


class CommOverlapP2PBase(CommOverlapCore):
    """Base of buffers whose pieces go around a ring."""


class CommOverlapP2P(CommOverlap, CommOverlapP2PBase):
    """A buffer whose pieces go around a ring."""

    in_a_ring = True


def bulk_overlap_ag_with_external_gemm(
    allgather_communicator: CommOverlap, send_stream: Any, recv_stream: Any
) -> None:
    """A gather beside a product that another buffer's communication runs with."""
    allgather_communicator.start_bulk(CommOverlapType.AG, None).wait()
