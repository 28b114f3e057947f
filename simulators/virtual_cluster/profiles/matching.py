"""Measured products and attention matched with predicted ones, by shape and sequence.

Each pass is aligned on its own (forward products TN, gradients of inputs NN and of weights NT,
attention forward and backward): within one, both sides run in the same order, whatever order
autograd or a framework gives the passes among each other. Walking both in step, equal shapes
match; so do a product and the several that it is split into, as queries, keys and values one by
one or in one product. What one side lacks is passed over, the shortest way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainscout.simulators.predictor.workload import ir

Anchor = ir.Gemm | ir.GroupedGemm | ir.Attention | ir.Convolution
# A product is split into no more than this (queries, keys, values; gate and up; experts).
MOST_PARTS = 8
# How far either side is looked ahead for what matches again: more than a layer's products.
LOOK_AHEAD = 48
# Layouts by what they contract: which of m, n, k several products of one operand add up in.
_FORWARD, _INPUT_GRADIENT, _WEIGHT_GRADIENT = "TN", "NN", "NT"


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape as ``shared`` sides and the ``split`` one, in which parts of one product add up."""

    shared: tuple[object, ...]
    split: int


@dataclass(frozen=True, slots=True)
class Match:
    """Positions of measured and of predicted anchors that are the same work."""

    measured: tuple[int, ...]
    predicted: tuple[int, ...]


@dataclass(frozen=True)
class Matched:
    """Measured operations with what they are predicted as, by positions in both; ``in_turn``:
    those whose shapes are not known."""

    pairs: tuple[Match, ...]
    predicted_of: Mapping[int, int]
    in_turn: frozenset[int]


def anchor_of(kernels: Sequence[ir.Kernel]) -> Anchor | None:
    """The one kernel of an operation whose shape says what it is."""
    found = [each for each in kernels if isinstance(each, Anchor)]
    return found[0] if len(found) == 1 else None


def lane_of(anchor: Anchor, layouts: bool) -> str:
    """Which sequence an anchor is part of; ``layouts``: whether the profile has strides."""
    if isinstance(anchor, ir.Attention):
        return f"attention {anchor.pass_}"
    if isinstance(anchor, ir.Convolution):
        return f"convolution {anchor.pass_}"
    kind = "grouped" if isinstance(anchor, ir.GroupedGemm) else "gemm"
    return f"{kind} {anchor.layout}" if layouts else kind


def shapes_of(anchor: Anchor) -> tuple[Shape, ...]:
    """The ways to see an anchor; a weight's gradient may be computed transposed."""
    if isinstance(anchor, ir.Attention):
        # Keys and values may have been written out for every head.
        sizes = (anchor.batch, anchor.seq_q, anchor.seq_k, anchor.head_dim)
        return (Shape(sizes, anchor.heads),)
    if isinstance(anchor, ir.Convolution):
        pixels = (anchor.batch, anchor.in_channels, anchor.in_size, anchor.kernel, anchor.stride)
        return (Shape(pixels, anchor.out_channels),)
    if isinstance(anchor, ir.GroupedGemm):
        if anchor.layout == _FORWARD:
            return (Shape((anchor.groups, anchor.m_per_group, anchor.k), anchor.n),)
        return (Shape((anchor.groups, anchor.m_per_group, anchor.k, anchor.n), 1),)
    batch, m, n, k = anchor.batch, anchor.m, anchor.n, anchor.k
    if anchor.layout == _INPUT_GRADIENT:
        return (Shape((batch, m, n), k),)
    if anchor.layout == _WEIGHT_GRADIENT:
        return Shape((batch, k, n), m), Shape((batch, k, m), n)
    return (Shape((batch, m, k), n),)


def align(measured: Sequence[Anchor], predicted: Sequence[Anchor]) -> list[Match]:
    """What is the same work in one lane; positions are those in the arguments."""
    ours = [shapes_of(each) for each in measured]
    theirs = [shapes_of(each)[0] for each in predicted]
    known = {shape.shared for shape in theirs}
    # What occurs on one side only matches nothing, wherever it stands.
    left = [at for at, views in enumerate(ours) if any(view.shared in known for view in views)]
    had = {view.shared for at in left for view in ours[at]}
    right = [at for at, shape in enumerate(theirs) if shape.shared in had]
    views, shapes = [ours[at] for at in left], [theirs[at] for at in right]
    found = []
    i = j = 0
    while i < len(views) and j < len(shapes):
        parts = _parts(views, i, shapes, j)
        if parts is None:
            passed = _next(views, i, shapes, j)
            if passed is None:
                i += 1  # nothing near: leave one measured out and try again
                continue
            i, j = i + passed[0], j + passed[1]
            continue
        taken, others = parts
        found.append(Match(tuple(left[i : i + taken]), tuple(right[j : j + others])))
        i, j = i + taken, j + others
    return found


def _next(
    views: Sequence[tuple[Shape, ...]], i: int, shapes: Sequence[Shape], j: int
) -> tuple[int, int] | None:
    """How many to pass over on either side until both match again, the fewest together."""
    for both in range(1, LOOK_AHEAD):
        for ours in range(both + 1):
            theirs = both - ours
            if (
                i + ours < len(views)
                and j + theirs < len(shapes)
                and _parts(views, i + ours, shapes, j + theirs) is not None
            ):
                return ours, theirs
    return None


def _parts(
    views: Sequence[tuple[Shape, ...]], i: int, shapes: Sequence[Shape], j: int
) -> tuple[int, int] | None:
    """How many measured from ``i`` and predicted from ``j`` are the same work; one of them is
    1."""
    wanted = shapes[j]
    for view in views[i]:
        if view.shared != wanted.shared:
            continue
        if view.split == wanted.split:
            return 1, 1
        if view.split < wanted.split:
            ours = (_same(each, wanted.shared) for each in views[i : i + MOST_PARTS])
            count = _adds_up(ours, wanted.split)
            if count is not None:
                return count, 1
        else:
            theirs = (
                each.split if each.shared == view.shared else None
                for each in shapes[j : j + MOST_PARTS]
            )
            count = _adds_up(theirs, view.split)
            if count is not None:
                return 1, count
    return None


def _same(views: tuple[Shape, ...], shared: tuple[object, ...]) -> int | None:
    return next((view.split for view in views if view.shared == shared), None)


def _adds_up(sizes: Iterator[int | None], total: int) -> int | None:
    """How many of the first sizes make ``total``; None when they pass it, or one is missing."""
    added = 0
    for count, size in enumerate(sizes, start=1):
        if size is None:
            return None
        added += size
        if added >= total:
            return count if added == total else None
    return None
