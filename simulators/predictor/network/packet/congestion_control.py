"""What senders do about congestion: DCQCN, TIMELY, Swift and HPCC.

DCQCN cuts the rate when notified and recovers on a timer (Zhu et al., SIGCOMM 2015). Timers are
not events: when a flow sends or is notified, what they did meanwhile is caught up with. TIMELY's
rate and Swift's window go by the delay of acknowledgements, HPCC's window by what switches stamp
on packets.
"""

from __future__ import annotations

from trainscout.simulators.predictor.network.compiled import compiled

from . import engine_arrays as t


@compiled
def catch_up(flow, now, flows, rates, whole, part):  # type: ignore[no-untyped-def]
    """Let alpha decay and the rate rise as often as their timers rang since the last time."""
    rang = (now - flows[flow, t.ALPHA_AT]) // whole[t.ALPHA_GAP]
    if rang > 0:
        rates[flow, t.ALPHA] *= (1.0 - part[t.GAIN]) ** rang
        flows[flow, t.ALPHA_AT] += rang * whole[t.ALPHA_GAP]
    rang = (now - flows[flow, t.RISE_AT]) // whole[t.RISE_GAP]
    flows[flow, t.RISE_AT] += rang * whole[t.RISE_GAP]
    line = rates[flow, t.LINE]
    for _ in range(rang):
        if rates[flow, t.RATE] >= line:
            break
        flows[flow, t.RISES] += 1
        if flows[flow, t.RISES] > 2 * whole[t.FAST]:
            rates[flow, t.TARGET] = min(line, rates[flow, t.TARGET] + part[t.HYPER])
        elif flows[flow, t.RISES] > whole[t.FAST]:
            rates[flow, t.TARGET] = min(line, rates[flow, t.TARGET] + part[t.ADDITIVE])
        risen = (rates[flow, t.TARGET] + rates[flow, t.RATE]) / 2
        rates[flow, t.RATE] = line if risen > 0.999999 * line else risen


@compiled
def notified(flow, time, flows, rates, whole, part):  # type: ignore[no-untyped-def]
    """Cut the rate by half of alpha, and start recovering anew."""
    catch_up(flow, time, flows, rates, whole, part)
    rates[flow, t.TARGET] = rates[flow, t.RATE]
    cut = rates[flow, t.RATE] * (1.0 - rates[flow, t.ALPHA] / 2)
    rates[flow, t.RATE] = max(part[t.LEAST], cut)
    rates[flow, t.ALPHA] = (1.0 - part[t.GAIN]) * rates[flow, t.ALPHA] + part[t.GAIN]
    flows[flow, t.ALPHA_AT] = flows[flow, t.RISE_AT] = time
    flows[flow, t.RISES] = 0


@compiled
def delay_came_back(flow, time, rtt, size, flows, rates, whole, part):  # type: ignore[no-untyped-def]
    """An acknowledgement of ``size`` bytes came at ``time``, ``rtt`` after they were sent."""
    if whole[t.PACED] == t.SWIFT:
        _swift(flow, time, rtt, size, flows, rates, whole, part)
        return
    flows[flow, t.ACKED] += size
    if flows[flow, t.ACKED] >= whole[t.SEGMENT]:
        flows[flow, t.ACKED] = 0
        _timely(flow, rtt, flows, rates, whole, part)


@compiled
def _timely(flow, rtt, flows, rates, whole, part):  # type: ignore[no-untyped-def]
    """Mittal et al. (SIGCOMM 2015), algorithm 1; ``TARGET`` holds the delay before, ``ALPHA`` the
    smoothed difference, ``RISES`` counts delays that did not grow."""
    before = rates[flow, t.TARGET]
    rates[flow, t.TARGET] = rtt
    if before > 0:
        rates[flow, t.ALPHA] = (1 - part[t.EWMA]) * rates[flow, t.ALPHA] + part[t.EWMA] * (
            rtt - before
        )
    gradient = rates[flow, t.ALPHA] / flows[flow, t.BASE_RTT]
    if rtt < whole[t.LOW]:
        rate = rates[flow, t.RATE] + part[t.DELAY_ADD]
    elif rtt > whole[t.HIGH]:
        rate = rates[flow, t.RATE] * (1 - part[t.DELAY_BETA] * (1 - whole[t.HIGH] / rtt))
    elif gradient <= 0:
        flows[flow, t.RISES] += 1
        steps = 5 if flows[flow, t.RISES] >= 5 else 1
        rate = rates[flow, t.RATE] + steps * part[t.DELAY_ADD]
    else:
        flows[flow, t.RISES] = 0
        rate = rates[flow, t.RATE] * (1 - part[t.DELAY_BETA] * min(gradient, 1.0))
    rates[flow, t.RATE] = min(rates[flow, t.LINE], max(part[t.LEAST], rate))


@compiled
def _swift(flow, time, rtt, size, flows, rates, whole, part):  # type: ignore[no-untyped-def]
    """Kumar et al. (SIGCOMM 2020), section 3.1, with one target of delay; ``TARGET`` holds the
    window in bytes, ``LINE`` the most it may be, ``RISE_AT`` when it was last cut."""
    window = rates[flow, t.TARGET]
    if rtt < whole[t.LOW]:
        window += part[t.DELAY_ADD] * whole[t.PACKET] * size / window
    elif time - flows[flow, t.RISE_AT] >= rtt:
        cut = min(part[t.MOST_CUT], part[t.DELAY_BETA] * (rtt - whole[t.LOW]) / rtt)
        window *= 1 - cut
        flows[flow, t.RISE_AT] = time
    window = min(rates[flow, t.LINE], max(float(whole[t.PACKET]), window))
    rates[flow, t.TARGET] = window
    flows[flow, t.WINDOW] = int(window)


@compiled
def stamp(packet, port, now, ports, packets):  # type: ignore[no-untyped-def]
    """A switch notes on a packet that leaves what its port has sent and what waits there."""
    at = t.PACKET_COLUMNS + t.STAMPS * packets[packet, t.HOP]
    packets[packet, at + t.STAMPED_AT], packets[packet, at + t.STAMPED_PORT] = now, port
    packets[packet, at + t.STAMPED_SENT] = ports[port, t.BYTES_SENT]
    packets[packet, at + t.STAMPED_QUEUE] = ports[port, t.QUEUE_BYTES]


@compiled
def stamps_came_back(flow, packet, ps_per_byte, flows, rates, packets, whole, part):  # type: ignore[no-untyped-def]
    """An acknowledgement brought back its packet's stamps, which HPCC's window goes by (Li et al.,
    SIGCOMM 2019, alg. 1).

    ``rates``' columns: ``RATE`` = W / T, ``TARGET`` the window that steps start from, ``LINE`` the
    most it may be, ``ALPHA`` the estimate U. ``RISES`` counts additive steps in a row. A path's
    first link belongs to the sender, who stamps nothing.
    """
    hops, base = flows[flow, t.HOPS], flows[flow, t.BASE_RTT]
    if hops < 2:
        return
    known = flows[flow, t.FLOW_COLUMNS + t.STAMPS + t.STAMPED_AT] != t.NONE
    most, span = 0.0, base
    for hop in range(1, hops):
        new, old = t.PACKET_COLUMNS + t.STAMPS * hop, t.FLOW_COLUMNS + t.STAMPS * hop
        apart = packets[packet, new + t.STAMPED_AT] - flows[flow, old + t.STAMPED_AT]
        if known and apart > 0:
            cost = ps_per_byte[packets[packet, new + t.STAMPED_PORT]]
            sent = packets[packet, new + t.STAMPED_SENT] - flows[flow, old + t.STAMPED_SENT]
            queue = min(packets[packet, new + t.STAMPED_QUEUE], flows[flow, old + t.STAMPED_QUEUE])
            used = queue * cost / base + sent * cost / apart
            if used > most:
                most, span = used, apart
        for each in range(t.STAMPS):
            flows[flow, old + each] = packets[packet, new + each]
    if not known or most == 0.0:
        return
    share = min(span, base) / base
    rates[flow, t.ALPHA] = (1 - share) * rates[flow, t.ALPHA] + share * most
    settle = packets[packet, t.LEFT_AT] > flows[flow, t.WINDOW_SET]
    window = rates[flow, t.TARGET] + whole[t.HPCC_ADD]
    if rates[flow, t.ALPHA] >= part[t.ETA] or flows[flow, t.RISES] >= whole[t.STAGES]:
        window = rates[flow, t.TARGET] * part[t.ETA] / rates[flow, t.ALPHA] + whole[t.HPCC_ADD]
        if settle:
            flows[flow, t.RISES] = 0
    elif settle:
        flows[flow, t.RISES] += 1
    window = min(rates[flow, t.LINE], max(float(whole[t.PACKET]), window))
    if settle:
        # The next to settle it is a packet that was sent by the new one.
        flows[flow, t.WINDOW_SET] = packets[packet, t.TIME]
        rates[flow, t.TARGET] = window
    flows[flow, t.WINDOW] = int(window)
    rates[flow, t.RATE] = window / base
