"""What passes take at least while each of their layers' parameters or gradients travel.

ZeRO 2 reduces gradients beside every backward pass, ZeRO 3 gathers parameters beside every pass,
and both slow the kernels that they run beside. A gather waits for the compute two segments before
it and a reduction is over before the second segment after it, so all exchanges of a pass but one
gather and one reduction lie between its start and the next pass's. In that time the pass's work
and these exchanges must be done, at best in the order in which they slow each other least: a
fractional knapsack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.interference.overlap import overlap_slowdowns
from trainscout.simulators.predictor.question.gpu import Gpu

Floats = NDArray[np.float64]


class Exchange(NamedTuple):
    """What exchanges beside one pass take at least, shape (rows,) each: ``s`` seconds (0: there
    are none), their channels and bytes per second in device memory, as of ``CollectivePrice``."""

    s: Floats
    channels: Floats
    bytes_per_s: Floats


class Passing(NamedTuple):
    """Passes of many recipes: what each block takes, ``work_s`` of shape (rows, blocks), and what
    nothing slows, ``other_s`` of shape (rows,). ``kernel_s``: for each second of a block, seconds
    of its kernels by class and of those that memory limits, shape (rows, blocks, 2, classes).
    ``joined``: whether an exchange is for blocks of several layers, whose kinds then lie between
    those of the blocks."""

    work_s: Floats
    kernel_s: Floats
    other_s: Floats
    joined: NDArray[np.bool_]


def least_s(gpu: Gpu, overlap: float, passing: Passing, exchanges: Sequence[Exchange]) -> Floats:
    """Seconds from the start of a pass to that of the next, shape (rows,).

    ``overlap``: how much more kernels and communication slow each other (``overlap_slowdowns``).
    """
    work_s, kernel_s = passing.work_s, passing.kernel_s
    rows, blocks = work_s.shape
    slower, slowed = np.full((2, rows, blocks), np.inf)
    total_s = np.zeros(rows)
    for exchange in exchanges:
        there = np.flatnonzero(exchange.s > 0)
        total_s += exchange.s
        wires = np.column_stack([exchange.channels[there], exchange.bytes_per_s[there]])
        for wire in np.unique(wires, axis=0):
            own = there[(wires == wire).all(axis=1)]
            kernels = kernel_s[own].reshape(-1, *kernel_s.shape[2:])
            on_work, on_wire = overlap_slowdowns(gpu, kernels, wire[:1], wire[1:], overlap)
            slower[own] = np.minimum(slower[own], on_work.reshape(-1, blocks) - 1)
            slowed[own] = np.minimum(slowed[own], on_wire.reshape(-1, blocks) - 1)
    nothing = total_s == 0
    slower[nothing] = slowed[nothing] = 0.0
    # Only kernels compete (``graph.Kinds``).
    share = np.minimum(1.0, kernel_s[:, :, 0].sum(axis=2))
    joint = np.where(work_s > 0, share, 1.0).min(axis=1) * _least(slower, work_s > 0)
    slower = 1 + np.where(passing.joined[:, None], joint[:, None], share * slower)
    slowed = 1 + np.where(passing.joined[:, None], 0.0, share * slowed)
    # A second of an exchange beside such work saves so much, up to all of the work.
    saves = np.column_stack([1 - slowed * (1 - 1 / slower), np.ones(rows)])
    room_s = np.column_stack([slower * work_s / slowed, passing.other_s])
    order = np.argsort(-saves, axis=1, kind="stable")
    saves, room_s = np.take_along_axis(saves, order, 1), np.take_along_axis(room_s, order, 1)
    beside_s = np.clip(total_s[:, None] - (np.cumsum(room_s, axis=1) - room_s), 0.0, room_s)
    saved_s = (beside_s * np.maximum(saves, 0.0)).sum(axis=1)
    least: Floats = work_s.sum(axis=1) + passing.other_s + total_s - saved_s
    return least


def _least(values: Floats, there: NDArray[np.bool_]) -> Floats:
    """The least of each row's values that are there; 0 where none is."""
    least: Floats = np.where(there, values, np.inf).min(axis=1)
    return np.where(there.any(axis=1), least, 0.0)
