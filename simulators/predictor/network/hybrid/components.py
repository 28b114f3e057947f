"""Which flows can influence each other, and how each of them goes: compiled passes over tables."""

from __future__ import annotations

from numba import njit

from trainscout.simulators.predictor.network.packet.engine_arrays import (
    BEGAN,
    DELIVERED,
    DONE,
    HOPS,
    NONE,
    PARKED,
    QUEUE_BYTES,
    RESTING,
)
from trainscout.simulators.predictor.network.union_find import root_of


@njit(cache=True)
def live_flows(first, used, flows, paths, ports, found):  # type: ignore[no-untyped-def]
    """Numbers of the flows that send or are on their way, not parked, into ``found``.

    Returns how many, and the first flow that has not arrived: none before it need be looked at.
    """
    count = 0
    unfinished = used
    for flow in range(first, used):
        if flows[flow, DONE] != NONE:
            continue
        unfinished = min(unfinished, flow)
        if (
            flows[flow, BEGAN] != NONE
            and flows[flow, RESTING] == 0
            and ports[paths[flow, 0], PARKED] == 0
        ):
            found[count] = flow
            count += 1
    return count, unfinished


@njit(cache=True)
def join(live, flows, paths, group):  # type: ignore[no-untyped-def]
    """Union-find over ports: ``group`` leads every port of the live flows to its component's."""
    for flow in live:
        for hop in range(flows[flow, HOPS]):
            group[paths[flow, hop]] = paths[flow, hop]
    for flow in live:
        own = root_of(group, paths[flow, 0])
        for hop in range(1, flows[flow, HOPS]):
            other = root_of(group, paths[flow, hop])
            if other != own:
                # The lower port leads, so that a component has one name.
                if other < own:
                    group[own] = other
                    own = other
                else:
                    group[other] = own
    for flow in live:
        for hop in range(flows[flow, HOPS]):
            group[paths[flow, hop]] = root_of(group, paths[flow, hop])


@njit(cache=True)
def sample(  # type: ignore[no-untyped-def]
    live, flows, paths, ports, group, members, label, seen, delivered, depths, at
):
    """Note what each flow has delivered and how deep queues are, in column ``at``.

    ``members``: a hash of each component's flows, by its leading port; where it is not a flow's
    last one (``label``), the flow's samples count from here.
    """
    for flow in live:
        members[group[paths[flow, 0]]] = 0
    for flow in live:
        mixed = (flow + 1) * 0x9E3779B97F4A7C1
        mixed ^= mixed >> 29
        members[group[paths[flow, 0]]] += mixed
    for flow in live:
        leader = group[paths[flow, 0]]
        if label[flow] != members[leader]:
            label[flow] = members[leader]
            seen[flow] = 0
        seen[flow] += 1
        delivered[flow, at] = flows[flow, DELIVERED]
        for hop in range(flows[flow, HOPS]):
            depths[paths[flow, hop], at] = ports[paths[flow, hop], QUEUE_BYTES]


@njit(cache=True)
def measure(  # type: ignore[no-untyped-def]
    live, at, seen, delivered, samples, tolerance, slack, speed, unsteady, paths, group
):
    """Each flow's mean bytes a sample into ``speed``; marks components with one that varies.

    ``delivered`` has one column more than there are ``samples``; ``at`` is the newest.
    """
    width = samples + 1
    for flow in live:
        leader = group[paths[flow, 0]]
        if seen[flow] < width:
            unsteady[leader] = 1
            continue
        least = most = NONE
        for step in range(samples):
            newer = delivered[flow, (at - step) % width]
            moved = newer - delivered[flow, (at - step - 1) % width]
            least = moved if least == NONE else min(least, moved)
            most = max(most, moved)
        # The oldest samples may still show how the flow got under way.
        recent = samples - samples // 4
        speed[flow] = (delivered[flow, at] - delivered[flow, (at - recent) % width]) / recent
        if speed[flow] <= 0 or most - least > tolerance * speed[flow] + slack:
            unsteady[leader] = 1


@njit(cache=True)
def judge_queues(  # type: ignore[no-untyped-def]
    live, at, depths, samples, queue_bytes, unsteady, flows, paths, group
):
    """Marks components with a queue that grows or shrinks."""
    width = samples + 1
    half = samples // 2
    for flow in live:
        leader = group[paths[flow, 0]]
        if unsteady[leader] == 1:
            continue
        for hop in range(flows[flow, HOPS]):
            port = paths[flow, hop]
            newer = older = 0
            for step in range(half):
                newer += depths[port, (at - step) % width]
                older += depths[port, (at - half - step) % width]
            if abs(newer - older) > queue_bytes * half:
                unsteady[leader] = 1


@njit(cache=True)
def judge_use(  # type: ignore[no-untyped-def]
    live, speed, carried, per_sample, wire, used, unsteady, flows, paths, group
):
    """Marks components with a flow that meets no full link, its NIC's cable included.

    ``per_sample``: bytes each link carries in a sample; ``wire``: bytes on the wire per byte of
    payload; ``carried`` is scratch.
    """
    for flow in live:
        for hop in range(flows[flow, HOPS]):
            carried[paths[flow, hop]] = 0.0
    for flow in live:
        for hop in range(flows[flow, HOPS]):
            carried[paths[flow, hop]] += speed[flow] * wire
    for flow in live:
        leader = group[paths[flow, 0]]
        if unsteady[leader] == 1:
            continue
        full = False
        for hop in range(flows[flow, HOPS]):
            port = paths[flow, hop]
            full = full or carried[port] >= used * per_sample[port]
        if not full:
            unsteady[leader] = 1
