"""Plain twins of the flow engine: exact fractions, dictionaries and no bookkeeping."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class PlainFlow:
    route: tuple[int, ...]
    size_bytes: int
    start_s: Fraction
    latency_s: Fraction = Fraction(0)


def rising_rates(routes: dict[int, tuple[int, ...]], capacity: list[int]) -> dict[int, Fraction]:
    """Max-min rates: all rates rise together, each until a link on its way is full."""
    rate = dict.fromkeys(routes, Fraction(0))
    rising = set(routes)
    while rising:
        steps = []
        for link, limit in enumerate(capacity):
            here = [flow for flow in routes if link in routes[flow]]
            free = [flow for flow in here if flow in rising]
            if free:
                steps.append((limit - sum(rate[flow] for flow in here)) / Fraction(len(free)))
        step = min(steps)
        for flow in rising:
            rate[flow] += step
        full = {
            link
            for link, limit in enumerate(capacity)
            if sum(rate[flow] for flow in routes if link in routes[flow]) == limit
        }
        rising = {flow for flow in rising if not full & set(routes[flow])}
    return rate


def arrivals(flows: list[PlainFlow], capacity: list[int]) -> list[Fraction]:
    """When each flow arrives, events taken one after another in exact time."""
    left = {index: Fraction(flow.size_bytes) for index, flow in enumerate(flows)}
    arrived: dict[int, Fraction] = {}
    now = Fraction(0)
    while left:
        starts = {index: flows[index].start_s for index in left}
        sending = {index: flows[index].route for index in starts if starts[index] <= now}
        rate = rising_rates(sending, capacity)
        ends = [now + left[index] / rate[index] for index in sending]
        then = min([*ends, *(start for start in starts.values() if start > now)])
        for index in sending:
            left[index] -= rate[index] * (then - now)
            if left[index] == 0:
                del left[index]
                arrived[index] = then + flows[index].latency_s
        now = then
    return [arrived[index] for index in range(len(flows))]
