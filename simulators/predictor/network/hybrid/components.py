"""Which flows can influence each other, and how each of them goes: compiled passes over tables."""

from __future__ import annotations

from trainscout.simulators.predictor.network.compiled import compiled
from trainscout.simulators.predictor.network.packet import engine_arrays as t
from trainscout.simulators.predictor.network.packet.sending import longest_train

# How a component is, by its leading port: every flow's rate stays; rates swing about a mean that
# stays (as pauses come and go); or neither.
STEADY, SWINGING, UNSTEADY = range(3)
# Its first flows, and one change of them, are what a component that becomes steady goes through.
_MOST_CHANGES = 2


@compiled
def live_flows(first, used, flows, paths, ports, found):  # type: ignore[no-untyped-def]
    """Numbers of the flows that send or are on their way, not parked, into ``found``.

    Returns how many, and the first flow that has not arrived: none before it need be looked at.
    """
    count = 0
    unfinished = used
    for flow in range(first, used):
        if flows[flow, t.DELIVERED] == flows[flow, t.SIZE]:
            continue
        unfinished = min(unfinished, flow)
        if (
            flows[flow, t.BEGAN] != t.NONE
            and flows[flow, t.RESTING] == 0
            and ports[paths[flow, 0], t.PARKED] == 0
        ):
            found[count] = flow
            count += 1
    return count, unfinished


@compiled
def sample(  # type: ignore[no-untyped-def]
    live, flows, paths, ports, group, members, label, changes, seen, delivered, depths, paused, at,
    now,
):  # fmt: skip
    """Note what each flow has delivered, how deep queues are and how long ports were paused so
    far, in column ``at``.

    ``members``: a hash of each component's flows, by its leading port; where it is not a flow's
    last one (``label``), the flow's samples count from here. ``changes`` counts those since the
    flow last stood still.
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
            changes[flow] += 1
        seen[flow] += 1
        delivered[flow, at] = flows[flow, t.DELIVERED]
        for hop in range(flows[flow, t.HOPS]):
            port = paths[flow, hop]
            depths[port, at] = ports[port, t.QUEUE_BYTES]
            paused[port, at] = ports[port, t.PAUSED_FOR]
            if ports[port, t.PAUSED] == 1:
                paused[port, at] += now - ports[port, t.PAUSED_SINCE]


@compiled
def couple(  # type: ignore[no-untyped-def]
    live, at, changes, paused, packet, train, scratch, least, flows, paths, group
):
    """Trains of ``train`` payload bytes at most for the flows of components that pauses hold up
    and in which flows come and go too often for them to stand still; returns whether that changes
    any.

    A component keeps its trains until it stands still, and whoever it meets gets them: flows of a
    host take turns, so all of a component change together, to what fits all: who sent longer ones
    than others would get ahead. ``scratch`` and ``least`` are by leading port.
    """
    before = (at - 1) % paused.shape[1]
    for flow in live:
        leader = group[paths[flow, 0]]
        scratch[leader] = 0
        least[leader] = train
    for flow in live:
        leader = group[paths[flow, 0]]
        least[leader] = min(least[leader], longest_train(flow, flows))
        if flows[flow, t.CUT] > packet:
            scratch[leader] = 3
        if changes[flow] > _MOST_CHANGES:
            scratch[leader] |= 1
        for hop in range(flows[flow, t.HOPS]):
            if paused[paths[flow, hop], at] > paused[paths[flow, hop], before]:
                scratch[leader] |= 2
    changed = False
    for flow in live:
        leader = group[paths[flow, 0]]
        if scratch[leader] == 3:
            # Powers of two, so that not every flow that comes or goes changes them.
            cut = packet
            while 2 * cut <= least[leader]:
                cut *= 2
            changed = changed or cut != flows[flow, t.CUT]
            flows[flow, t.CUT] = cut
    return changed


@compiled
def measure(  # type: ignore[no-untyped-def]
    live, at, seen, delivered, samples, tolerance, swing, slack, speed, state, paths, group
):
    """Each flow's mean bytes a sample into ``speed``; the ``state`` of components by what varies.

    ``delivered`` has one column more than there are ``samples``; ``at`` is the newest.
    """
    width = samples + 1
    half = samples // 2
    for flow in live:
        leader = group[paths[flow, 0]]
        if seen[flow] < width:
            state[leader] = UNSTEADY
            continue
        least = most = t.NONE
        for step in range(samples):
            newer = delivered[flow, (at - step) % width]
            moved = newer - delivered[flow, (at - step - 1) % width]
            least = moved if least == t.NONE else min(least, moved)
            most = max(most, moved)
        # The oldest samples may still show how the flow got under way.
        recent = samples - samples // 4
        speed[flow] = (delivered[flow, at] - delivered[flow, (at - recent) % width]) / recent
        if speed[flow] > 0 and most - least <= tolerance * speed[flow] + slack:
            continue
        newer = delivered[flow, at] - delivered[flow, (at - half) % width]
        older = delivered[flow, (at - half) % width] - delivered[flow, (at - samples) % width]
        speed[flow] = (newer + older) / samples
        stays = abs(newer - older) <= swing * speed[flow] * half + slack
        state[leader] = max(state[leader], SWINGING if stays and speed[flow] > 0 else UNSTEADY)


@compiled
def judge(  # type: ignore[no-untyped-def]
    live, at, speed, depths, queue_bytes, paused, carried, per_sample, sample, samples, wire, used,
    pauses, state, flows, paths, group,
):  # fmt: skip
    """Marks components with a queue that grows or shrinks, that swing though no port of theirs was
    paused (their rates still change), or with a flow that meets no full link, its NIC's cable
    included.

    Where rates swing a link is full that sends or is paused all the time. ``per_sample``: bytes
    each link carries in a sample, which lasts ``sample``; ``wire``: bytes on the wire per byte of
    payload; ``carried`` and ``pauses``, by leading port, are scratch.
    """
    width = samples + 1
    half = samples // 2
    for flow in live:
        pauses[group[paths[flow, 0]]] = 0
        for hop in range(flows[flow, t.HOPS]):
            carried[paths[flow, hop]] = 0.0
    for flow in live:
        leader = group[paths[flow, 0]]
        for hop in range(flows[flow, t.HOPS]):
            port = paths[flow, hop]
            carried[port] += speed[flow] * wire
            pauses[leader] += paused[port, at] - paused[port, (at + 1) % width]
            if state[leader] == UNSTEADY:
                continue
            newer = older = 0
            for step in range(half):
                newer += depths[port, (at - step) % width]
                older += depths[port, (at - half - step) % width]
            if abs(newer - older) > queue_bytes * half:
                state[leader] = UNSTEADY
    for flow in live:
        leader = group[paths[flow, 0]]
        if state[leader] == UNSTEADY:
            continue
        full = False
        for hop in range(flows[flow, t.HOPS]):
            port = paths[flow, hop]
            still = 0.0
            if state[leader] == SWINGING:
                still = (paused[port, at] - paused[port, (at + 1) % width]) / (sample * samples)
            full = full or carried[port] >= (used - still) * per_sample[port]
        if not full or (state[leader] == SWINGING and pauses[leader] == 0):
            state[leader] = UNSTEADY
