"""DCQCN at the sender: cut the rate when notified, recover on a timer (Zhu et al., SIGCOMM 2015).

Timers are not events: when a flow sends or is notified, what they did meanwhile is caught up with.
"""

from __future__ import annotations

from numba import njit

from .engine_arrays import (
    ADDITIVE,
    ALPHA,
    ALPHA_AT,
    ALPHA_GAP,
    FAST,
    GAIN,
    HYPER,
    LEAST,
    LINE,
    RATE,
    RISE_AT,
    RISE_GAP,
    RISES,
    TARGET,
)


@njit(cache=True)
def catch_up(flow, now, flows, rates, whole, part):  # type: ignore[no-untyped-def]
    """Let alpha decay and the rate rise as often as their timers rang since the last time."""
    rang = (now - flows[flow, ALPHA_AT]) // whole[ALPHA_GAP]
    if rang > 0:
        rates[flow, ALPHA] *= (1.0 - part[GAIN]) ** rang
        flows[flow, ALPHA_AT] += rang * whole[ALPHA_GAP]
    rang = (now - flows[flow, RISE_AT]) // whole[RISE_GAP]
    flows[flow, RISE_AT] += rang * whole[RISE_GAP]
    line = rates[flow, LINE]
    for _ in range(rang):
        if rates[flow, RATE] >= line:
            break
        flows[flow, RISES] += 1
        if flows[flow, RISES] > 2 * whole[FAST]:
            rates[flow, TARGET] = min(line, rates[flow, TARGET] + part[HYPER])
        elif flows[flow, RISES] > whole[FAST]:
            rates[flow, TARGET] = min(line, rates[flow, TARGET] + part[ADDITIVE])
        risen = (rates[flow, TARGET] + rates[flow, RATE]) / 2
        rates[flow, RATE] = line if risen > 0.999999 * line else risen


@njit(cache=True)
def notified(flow, time, flows, rates, whole, part):  # type: ignore[no-untyped-def]
    """Cut the rate by half of alpha, and start recovering anew."""
    catch_up(flow, time, flows, rates, whole, part)
    rates[flow, TARGET] = rates[flow, RATE]
    cut = rates[flow, RATE] * (1.0 - rates[flow, ALPHA] / 2)
    rates[flow, RATE] = max(part[LEAST], cut)
    rates[flow, ALPHA] = (1.0 - part[GAIN]) * rates[flow, ALPHA] + part[GAIN]
    flows[flow, ALPHA_AT] = flows[flow, RISE_AT] = time
    flows[flow, RISES] = 0
