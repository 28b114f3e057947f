"""Union-find over links, compiled: which of them flows join."""

from __future__ import annotations

from numba import njit


@njit(cache=True)
def root_of(group, link):  # type: ignore[no-untyped-def]
    """The link that leads ``link``'s component; halves the way there for the next time.

    ``group``, shape (links,), leads every link to another of its component, the last to itself.
    """
    while group[link] != link:
        group[link] = group[group[link]]
        link = group[link]
    return link
