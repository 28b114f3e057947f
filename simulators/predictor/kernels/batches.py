"""Kernels as arrays: what operations of a workload and rows of measured tables both become.

A batch holds kernels that one formula prices together, in the order they were given. Its
``kinds`` are how measured kernels are distinguished: kernels of one kind differ by shape alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.errors import InputError, require_choice
from trainscout.simulators.predictor.workload import ir

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Kind = tuple[str, ...]

LAYOUTS = ("TN", "NN", "NT")
# Attention generations a training job may run; others, "serving", only appear in tables.
TRAINING_ATTENTION = ("flash", "flash2", "flash1", "flash1_triton")

_ATTENTION_SHAPE = attrgetter(
    "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v", "causal"
)
_STREAMING_SIZES = attrgetter("bytes", "launches")


@dataclass(frozen=True, eq=False, repr=False)
class Gemms:
    """Matrix products of one precision.

    ``sizes`` (n, 4): m, n, k and how many equal products there are; ``layouts`` (n,) of
    ``LAYOUTS``, "NT" a weight gradient; ``accumulate`` (n,) bytes an element of what a result is
    added into, 0 where it is written; ``grouped`` (n,) products that share a launch but not their
    operands. ``one_kernel``: a grouped kernel
    computes all groups, instead of one product launched after another.
    """

    dtype: str
    sizes: Ints
    layouts: NDArray[np.str_]
    accumulate: Ints
    grouped: Mask
    one_kernel: bool = False

    def __len__(self) -> int:
        return len(self.sizes)

    def kinds(self) -> Iterator[tuple[Kind, Ints, Ints]]:
        """Kind, positions (k,) and shapes (k, dims) of each."""
        for name, family in (("gemm", ~self.grouped), ("grouped_gemm", self.grouped)):
            for layout in LAYOUTS:
                (positions,) = np.nonzero(family & (self.layouts == layout))
                if len(positions):
                    yield (name, _numeric(self.dtype), layout), positions, self.sizes[positions]


@dataclass(frozen=True, eq=False, repr=False)
class Attentions:
    """One pass of fused attention. ``shapes`` (n, 8): batch, heads, kv_heads, seq_q, seq_k,
    head_dim, head_dim_v, causal. ``dropout``: of the probabilities."""

    dtype: str
    pass_: str
    kernel: str
    shapes: Ints
    dropout: bool = False

    def __len__(self) -> int:
        return len(self.shapes)

    def kinds(self) -> Iterator[tuple[Kind, Ints, Ints]]:
        """See ``Gemms.kinds``; kernels that no training job runs are of none."""
        if self.kernel in TRAINING_ATTENTION:
            kind = ("attention", _numeric(self.dtype), self.pass_, self.kernel)
            yield kind, np.arange(len(self.shapes)), self.shapes


@dataclass(frozen=True, eq=False, repr=False)
class Streamings:
    """Memory-bound kernels. ``sizes`` (n, 2): bytes moved in all, and by how many launches."""

    names: tuple[str, ...]
    sizes: Ints

    def __len__(self) -> int:
        return len(self.sizes)

    def kinds(self) -> Iterator[tuple[Kind, Ints, NDArray[np.float64]]]:
        """See ``Gemms.kinds``; kernels that share the bytes each move their part of them."""
        names = np.array(self.names)
        for name in dict.fromkeys(self.names):
            (positions,) = np.nonzero(names == name)
            moved, launches = self.sizes[positions].T
            yield ("streaming", name), positions, (moved / launches)[:, None]


@dataclass(frozen=True, eq=False, repr=False)
class FusedProducts:
    """Products of one precision within fused kernels of one class: ``flops`` (n,) of each."""

    dtype: str
    within: str
    flops: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.flops)

    def kinds(self) -> Iterator[tuple[Kind, Ints, Ints]]:
        """None: no table holds them apart from their kernels."""
        return iter(())


@dataclass(frozen=True, eq=False, repr=False)
class Convolutions:
    """Convolutions of one precision and pass, which no table holds yet."""

    dtype: str
    ops: tuple[ir.Convolution, ...]

    def __len__(self) -> int:
        return len(self.ops)

    def kinds(self) -> Iterator[tuple[Kind, Ints, Ints]]:
        """None."""
        return iter(())


Batch = Gemms | Attentions | Streamings | FusedProducts | Convolutions


def batches_of(ops: Sequence[ir.Kernel]) -> Iterator[tuple[list[int], Batch]]:
    """Operations in batches, each with the positions of its own.

    Raises:
        InputError: for an unknown layout, pass or attention kernel, or what is no kernel.
    """
    alike: dict[tuple[Any, ...], list[int]] = {}
    for position, op in enumerate(ops):
        alike.setdefault(_alike(op), []).append(position)
    for (build, *shared), positions in alike.items():
        yield positions, build([ops[position] for position in positions], *shared)


def _alike(op: ir.Kernel) -> tuple[Any, ...]:
    """What makes a batch of operations, and what they share."""
    if isinstance(op, ir.Streaming):  # most are
        return (_streamings,)
    if isinstance(op, ir.Gemm):
        return (_fused, op.dtype, op.within) if op.within else (_gemms, op.dtype, False)
    if isinstance(op, ir.GroupedGemm):
        return _gemms, op.dtype, op.one_kernel
    if isinstance(op, ir.Attention):
        return _attentions, op.dtype, op.pass_, op.kernel, op.dropout
    if isinstance(op, ir.Convolution):
        return _convolutions, op.dtype
    allowed = "Gemm, GroupedGemm, Attention, Convolution or Streaming"
    raise InputError("ops", type(op).__name__, "is not a kernel", allowed)


def _gemms(ops: list[ir.Gemm | ir.GroupedGemm], dtype: str, one_kernel: bool) -> Gemms:
    layouts = [op.layout for op in ops]
    for layout in set(layouts):
        require_choice("gemm.layout", layout, LAYOUTS)
    return Gemms(
        dtype,
        np.array([ir.product_sizes(op) for op in ops], dtype=np.int64),
        np.array(layouts),
        np.array([op.accumulate for op in ops], dtype=np.int64),
        np.array([type(op) is ir.GroupedGemm for op in ops]),
        one_kernel,
    )


def _fused(ops: list[ir.Gemm], dtype: str, within: str) -> FusedProducts:
    return FusedProducts(dtype, within, np.array([ir.kernel_flops(op) for op in ops], np.float64))


def _attentions(
    ops: list[ir.Attention], dtype: str, pass_: str, kernel: str, dropout: bool
) -> Attentions:
    require_choice("attention.pass_", pass_, ("fwd", "bwd"))
    require_choice("attention.kernel", kernel, TRAINING_ATTENTION)
    shapes = np.array([_ATTENTION_SHAPE(op) for op in ops], dtype=np.int64)
    return Attentions(dtype, pass_, kernel, shapes, dropout)


def _streamings(ops: list[ir.Streaming]) -> Streamings:
    sizes = np.array([_STREAMING_SIZES(op) for op in ops], dtype=np.int64)
    return Streamings(tuple(op.kind for op in ops), sizes)


def _convolutions(ops: list[ir.Convolution], dtype: str) -> Convolutions:
    return Convolutions(dtype, tuple(ops))


def _numeric(dtype: str) -> str:
    """16-bit types run alike."""
    return "half" if dtype in ("bf16", "fp16") else dtype
