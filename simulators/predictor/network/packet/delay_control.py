"""Senders that go by the delay of acknowledgements: TIMELY's rate and Swift's window."""

from __future__ import annotations

from numba import njit

from .engine_arrays import (
    ACKED,
    ALPHA,
    BASE_RTT,
    DELAY_ADD,
    DELAY_BETA,
    EWMA,
    HIGH,
    LEAST,
    LINE,
    LOW,
    MOST_CUT,
    PACED,
    PACKET,
    RATE,
    RISE_AT,
    RISES,
    SEGMENT,
    SWIFT,
    TARGET,
    WINDOW,
)


@njit(cache=True)
def acknowledged(flow, time, rtt, size, flows, rates, whole, part):  # type: ignore[no-untyped-def]
    """An acknowledgement of ``size`` bytes came at ``time``, ``rtt`` after they were sent."""
    if whole[PACED] == SWIFT:
        _swift(flow, time, rtt, size, flows, rates, whole, part)
        return
    flows[flow, ACKED] += size
    if flows[flow, ACKED] >= whole[SEGMENT]:
        flows[flow, ACKED] = 0
        _timely(flow, rtt, flows, rates, whole, part)


@njit(cache=True)
def _timely(flow, rtt, flows, rates, whole, part):  # type: ignore[no-untyped-def]
    """Mittal et al. (SIGCOMM 2015), algorithm 1; ``TARGET`` holds the delay before, ``ALPHA`` the
    smoothed difference, ``RISES`` counts delays that did not grow."""
    before = rates[flow, TARGET]
    rates[flow, TARGET] = rtt
    if before > 0:
        rates[flow, ALPHA] = (1 - part[EWMA]) * rates[flow, ALPHA] + part[EWMA] * (rtt - before)
    gradient = rates[flow, ALPHA] / flows[flow, BASE_RTT]
    if rtt < whole[LOW]:
        rate = rates[flow, RATE] + part[DELAY_ADD]
    elif rtt > whole[HIGH]:
        rate = rates[flow, RATE] * (1 - part[DELAY_BETA] * (1 - whole[HIGH] / rtt))
    elif gradient <= 0:
        flows[flow, RISES] += 1
        steps = 5 if flows[flow, RISES] >= 5 else 1
        rate = rates[flow, RATE] + steps * part[DELAY_ADD]
    else:
        flows[flow, RISES] = 0
        rate = rates[flow, RATE] * (1 - part[DELAY_BETA] * min(gradient, 1.0))
    rates[flow, RATE] = min(rates[flow, LINE], max(part[LEAST], rate))


@njit(cache=True)
def _swift(flow, time, rtt, size, flows, rates, whole, part):  # type: ignore[no-untyped-def]
    """Kumar et al. (SIGCOMM 2020), section 3.1, with one target of delay; ``TARGET`` holds the
    window in bytes, ``LINE`` the most it may be, ``RISE_AT`` when it was last cut."""
    window = rates[flow, TARGET]
    if rtt < whole[LOW]:
        window += part[DELAY_ADD] * whole[PACKET] * size / window
    elif time - flows[flow, RISE_AT] >= rtt:
        cut = min(part[MOST_CUT], part[DELAY_BETA] * (rtt - whole[LOW]) / rtt)
        window *= 1 - cut
        flows[flow, RISE_AT] = time
    window = min(rates[flow, LINE], max(float(whole[PACKET]), window))
    rates[flow, TARGET] = window
    flows[flow, WINDOW] = int(window)
