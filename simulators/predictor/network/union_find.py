"""Union-find over links, compiled: which of them flows join."""

from __future__ import annotations

from trainscout.simulators.predictor.network.compiled import compiled


@compiled
def root_of(group, link):  # type: ignore[no-untyped-def]
    """The link that leads ``link``'s component; halves the way there for the next time.

    ``group``, shape (links,), leads every link to another of its component, the last to itself.
    """
    while group[link] != link:
        group[link] = group[group[link]]
        link = group[link]
    return link


@compiled
def join_links(flows, paths, group):  # type: ignore[no-untyped-def]
    """Lead every link that these ``flows`` cross to that of its component: flows are joined by
    links that they share, and the lowest link leads, so that a component has one name.

    ``paths``: each flow's links, shape (all flows, hops), filled up with numbers below 0.
    """
    for flow in flows:
        for link in paths[flow]:
            if link >= 0:
                group[link] = link
    for flow in flows:
        own = root_of(group, paths[flow, 0])
        for link in paths[flow]:
            if link >= 0:
                other = root_of(group, link)
                lower = min(own, other)
                group[max(own, other)] = lower
                own = lower
    for flow in flows:
        for link in paths[flow]:
            if link >= 0:
                group[link] = root_of(group, link)
