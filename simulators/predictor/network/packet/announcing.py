"""Flows are announced: whom they wait for, when they start."""

from __future__ import annotations

from numba import njit

from trainscout.simulators.predictor.network.packet.engine_arrays import (
    DONE,
    EARLIEST,
    FIRST_LATER,
    FIRST_TIE,
    LAG,
    NONE,
    NOW,
    START_EVENT,
    WAITS,
)
from trainscout.simulators.predictor.network.packet.heap import push


@njit(cache=True)
def tie(pairs, first, flows, ties, used):  # type: ignore[no-untyped-def]
    """Let each flow wait for those that have not arrived, and start after those that have.

    ``pairs``: (flow, earlier flow); flows from ``first`` on are announced together. Returns how
    many rows of ``ties`` are in use.
    """
    for row in range(len(pairs)):
        child, parent = pairs[row]
        if flows[parent, DONE] != NONE:
            after = flows[parent, DONE] + flows[child, LAG]
            flows[child, EARLIEST] = max(flows[child, EARLIEST], after)
            continue
        flows[child, WAITS] += 1
        column = FIRST_TIE if parent >= first else FIRST_LATER
        ties[used, 0], ties[used, 1] = child, flows[parent, column]
        flows[parent, column] = used
        used += 1
    return used


@njit(cache=True)
def schedule(first, last, flows, heap, count):  # type: ignore[no-untyped-def]
    """Let the flows from ``first`` to before ``last`` that wait for nobody start."""
    for flow in range(first, last):
        flows[flow, EARLIEST] = max(flows[flow, EARLIEST], count[NOW])
        if flows[flow, WAITS] == 0:
            push(heap, count, flows[flow, EARLIEST], START_EVENT, flow)
