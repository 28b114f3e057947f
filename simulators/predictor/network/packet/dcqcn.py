"""DCQCN at the sender: cut the rate when notified, recover on a timer (Zhu et al., SIGCOMM 2015).

Timers are not events: when a flow sends or is notified, what they did meanwhile is caught up with.
"""

from __future__ import annotations

from numba import njit

from . import engine_arrays as t


@njit(cache=True)
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


@njit(cache=True)
def notified(flow, time, flows, rates, whole, part):  # type: ignore[no-untyped-def]
    """Cut the rate by half of alpha, and start recovering anew."""
    catch_up(flow, time, flows, rates, whole, part)
    rates[flow, t.TARGET] = rates[flow, t.RATE]
    cut = rates[flow, t.RATE] * (1.0 - rates[flow, t.ALPHA] / 2)
    rates[flow, t.RATE] = max(part[t.LEAST], cut)
    rates[flow, t.ALPHA] = (1.0 - part[t.GAIN]) * rates[flow, t.ALPHA] + part[t.GAIN]
    flows[flow, t.ALPHA_AT] = flows[flow, t.RISE_AT] = time
    flows[flow, t.RISES] = 0
