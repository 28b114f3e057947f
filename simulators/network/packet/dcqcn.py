"""DCQCN at the sender: cut the rate when notified, recover on a timer (Zhu et al., SIGCOMM 2015).

Timers are not events: when a flow sends or is notified, what they did meanwhile is caught up with.
"""

from __future__ import annotations

from numba import njit

from simulators.network.packet.tables import ALPHA, ALPHA_AT, LINE, RATE, RISE_AT, RISES, TARGET

# Entries of the settings' arrays, as in ``kernel``.
_ALPHA_GAP, _RISE_GAP, _FAST = 7, 8, 9
_GAIN, _ADDITIVE, _HYPER, _LEAST = 0, 1, 2, 3


@njit(cache=True)
def catch_up(flow, now, flows, rates, whole, part):  # type: ignore[no-untyped-def]
    """Let alpha decay and the rate rise as often as their timers rang since the last time."""
    rang = (now - flows[flow, ALPHA_AT]) // whole[_ALPHA_GAP]
    if rang > 0:
        rates[flow, ALPHA] *= (1.0 - part[_GAIN]) ** rang
        flows[flow, ALPHA_AT] += rang * whole[_ALPHA_GAP]
    rang = (now - flows[flow, RISE_AT]) // whole[_RISE_GAP]
    flows[flow, RISE_AT] += rang * whole[_RISE_GAP]
    line = rates[flow, LINE]
    for _ in range(rang):
        if rates[flow, RATE] >= line:
            break
        flows[flow, RISES] += 1
        if flows[flow, RISES] > 2 * whole[_FAST]:
            rates[flow, TARGET] = min(line, rates[flow, TARGET] + part[_HYPER])
        elif flows[flow, RISES] > whole[_FAST]:
            rates[flow, TARGET] = min(line, rates[flow, TARGET] + part[_ADDITIVE])
        risen = (rates[flow, TARGET] + rates[flow, RATE]) / 2
        rates[flow, RATE] = line if risen > 0.999999 * line else risen


@njit(cache=True)
def notified(flow, time, flows, rates, whole, part):  # type: ignore[no-untyped-def]
    """Cut the rate by half of alpha, and start recovering anew."""
    catch_up(flow, time, flows, rates, whole, part)
    rates[flow, TARGET] = rates[flow, RATE]
    cut = rates[flow, RATE] * (1.0 - rates[flow, ALPHA] / 2)
    rates[flow, RATE] = max(part[_LEAST], cut)
    rates[flow, ALPHA] = (1.0 - part[_GAIN]) * rates[flow, ALPHA] + part[_GAIN]
    flows[flow, ALPHA_AT] = flows[flow, RISE_AT] = time
    flows[flow, RISES] = 0
