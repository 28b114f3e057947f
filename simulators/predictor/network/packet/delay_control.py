"""Senders that go by the delay of acknowledgements: TIMELY's rate and Swift's window."""

from __future__ import annotations

from numba import njit

from . import engine_arrays as t


@njit(cache=True)
def acknowledged(flow, time, rtt, size, flows, rates, whole, part):  # type: ignore[no-untyped-def]
    """An acknowledgement of ``size`` bytes came at ``time``, ``rtt`` after they were sent."""
    if whole[t.PACED] == t.SWIFT:
        _swift(flow, time, rtt, size, flows, rates, whole, part)
        return
    flows[flow, t.ACKED] += size
    if flows[flow, t.ACKED] >= whole[t.SEGMENT]:
        flows[flow, t.ACKED] = 0
        _timely(flow, rtt, flows, rates, whole, part)


@njit(cache=True)
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


@njit(cache=True)
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
