"""Transformer Engine's userbuffers: tensor-parallel communication in pieces beside its product.

They work inside the library's kernels, below anything that is traced. As in ``workload.linear``,
one of ``tp`` pieces stays exposed and the rest runs beside the product.
"""

from __future__ import annotations

from dataclasses import replace

from trainscout.simulators.predictor.workload.ir import Collective, Gemm, Op


def beside_products(ops: tuple[Op, ...], tp: int) -> tuple[Op, ...]:
    """Blocking gathers before a product and scatters after one, cut up and put beside it.

    ``forward_ops`` of a block is a count of issued operations and stays as it is.
    """
    result: list[Op] = []
    for op in ops:
        result.append(op)
        if isinstance(op, Gemm):
            _gather_beside(result, tp)
        elif _is_blocking(op, "reduce_scatter"):
            _scatter_beside(result, tp)
    return tuple(result)


def _is_blocking(op: Op, kind: str) -> bool:
    return (
        isinstance(op, Collective)
        and op.kind == kind
        and op.communicator == "tp"
        and not op.overlaps
    )


def _gather_beside(result: list[Op], tp: int) -> None:
    """The last operation is a product: a gather right before it runs beside it."""
    before = len(result) - 2
    if before >= 0 and _is_blocking(result[before], "all_gather"):
        result[before : before + 1] = _cut(result[before], tp)


def _scatter_beside(result: list[Op], tp: int) -> None:
    """The last operation is a scatter: it runs beside a product right before it."""
    before = len(result) - 2
    if before >= 0 and isinstance(result[before], Gemm):
        scatter = result.pop()
        result[before:before] = _cut(scatter, tp)


def _cut(op: Op, tp: int) -> list[Op]:
    assert isinstance(op, Collective)
    piece = op.bytes // tp
    return [replace(op, bytes=piece), replace(op, bytes=op.bytes - piece, overlaps=1)]
