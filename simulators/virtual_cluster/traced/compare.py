"""Two sources of one workload side by side, operation by operation.

What is compared is what a layer must do whoever wrote it: matrix products, attention,
communication, what activations it keeps. How many memory-bound kernels do the rest is the
framework's affair and priced, not compared.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from trainscout.simulators.predictor.workload.ir import (
    Attention,
    Block,
    Collective,
    Gemm,
    GroupedGemm,
    HostSync,
    SendRecv,
)

# An operation without its name: its class and fields.
Shape = tuple[object, ...]


@dataclass(frozen=True)
class Difference:
    """What only one of two blocks does: ``count`` times, ``source`` says which."""

    source: str
    what: Shape
    count: int

    def __str__(self) -> str:
        return f"only {self.source}: {self.count} x {' '.join(map(str, self.what))}"


def shapes(block: Block) -> Counter[Shape]:
    """Multiset of what a block multiplies, attends to, communicates and waits for."""
    return Counter(shape for shape in map(shape_of, block.ops) if shape is not None)


def shape_of(op: object) -> Shape | None:
    """What is compared of an operation; None for what is not."""
    if isinstance(op, Gemm):
        return ("gemm", op.layout, op.batch, op.m, op.n, op.k, op.dtype, op.accumulate)
    if isinstance(op, GroupedGemm):
        size = (op.groups, op.m_per_group, op.n, op.k)
        return ("grouped_gemm", op.layout, *size, op.dtype, op.accumulate)
    if isinstance(op, Attention):
        heads = (op.heads, op.kv_heads, op.seq_q, op.seq_k, op.head_dim, op.head_dim_v)
        return (f"attention_{op.pass_}", op.batch, *heads, "causal" if op.causal else "full")
    if isinstance(op, Collective):
        how = "beside" if op.overlaps else "blocking"
        return (op.kind, op.communicator, op.bytes, how)
    if isinstance(op, SendRecv):
        return ("send_recv", op.communicator, op.bytes)
    if isinstance(op, HostSync):
        return ("host_sync",)
    return None


def differences(ours: Counter[Shape], theirs: Counter[Shape]) -> list[Difference]:
    """What the built-in source does and the traced one does not, and the reverse; most frequent
    first."""
    found = [
        Difference(source, shape, count)
        for source, rest in (("builtin", ours - theirs), ("traced", theirs - ours))
        for shape, count in rest.items()
    ]
    return sorted(found, key=lambda each: (-each.count, str(each)))
