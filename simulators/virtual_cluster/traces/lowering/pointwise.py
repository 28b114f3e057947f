"""Elementwise operations, and everything whose cost is the bytes it goes over once."""

from __future__ import annotations

import math

from trainscout.simulators.predictor.workload.ir import Streaming
from trainscout.simulators.virtual_cluster.traces.events import Op, TensorSpec

from .tensors import FREE, Lowered, elements, in_place, moved, names, on_device, short_name

RULE = "elementwise"
UNKNOWN_RULE = "unknown"
UNVECTORISED_BYTES = 10

NAMES = names("elementwise")
# Of these, what computes so much of each element that memory does not set the pace alone.
_ACTIVATIONS = frozenset(
    f"{name}{pass_}" for name in ("gelu", "glu", "mish", "silu") for pass_ in ("", "_backward")
)
# Gradients of views: a tensor of zeros is made, then the part that has a gradient written.
_VIEW_GRADIENTS = frozenset({"slice_backward", "select_backward", "diagonal_backward"})


def elementwise(op: Op) -> Lowered:
    """One kernel that reads every tensor once and writes its results once."""
    return _by_bytes(op, RULE, estimated=False, least=unvectorised_bytes(op))


def unknown(op: Op) -> Lowered:
    """An operation nothing is known of, taken to be memory-bound."""
    return _by_bytes(op, UNKNOWN_RULE, estimated=True)


def unvectorised_bytes(op: Op) -> int:
    """What an elementwise kernel takes at least, as bytes, where it goes element by element.

    PyTorch's ``TensorIterator`` reads several elements at once only from tensors that lie in
    memory alike. Of all others it works out the place of each element, and takes as long for two
    bytes as for eight: 0.28 to 0.36 x 10^12 elements a second measured on one H100 80 GB (SXM),
    torch 2.11, CUDA 13.0, November 2026, where vectorised kernels move 3.0 TB/s.
    """
    specs = [*on_device(op.inputs), *on_device(op.outputs)]
    if len({(spec.shape, _placed(spec)) for spec in specs}) <= 1:
        return 0
    largest = specs[-1] if op.outputs else specs[0]
    wide = largest.shape
    for spec in specs:
        aligned = zip(reversed(spec.shape), reversed(wide), strict=False)
        if len(spec.shape) > len(wide) or any(mine not in (1, its) for mine, its in aligned):
            return 0  # No broadcast: a kernel of its own.
    return UNVECTORISED_BYTES * elements(largest)


def _placed(spec: TensorSpec) -> tuple[int, ...]:
    """Strides of the dimensions that have any; none: row by row."""
    if spec.strides is None:
        return ()
    pairs = zip(spec.shape, spec.strides, strict=True)
    placed = tuple(stride for length, stride in pairs if length != 1)
    dense = [length for length in spec.shape if length != 1]
    row_by_row = tuple(math.prod(dense[at + 1 :]) for at in range(len(dense)))
    return () if placed == row_by_row else placed


def _by_bytes(op: Op, rule: str, *, estimated: bool, least: int = 0) -> Lowered:
    read = moved(on_device(op.inputs))
    written = moved(op.outputs)
    if in_place(op) and not op.outputs:
        written = moved(on_device(op.inputs[:1]))
    if not read + written:
        return FREE
    if short_name(op) in _VIEW_GRADIENTS:
        written += read
    kind = "activation" if short_name(op) in _ACTIVATIONS else "elementwise"
    kernel = Streaming(short_name(op), kind, max(read + written, least))
    return Lowered((kernel,), rule, estimated)
