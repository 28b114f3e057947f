"""What happens in a step: work that takes its time, and messages that the network decides on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.network.collectives.transfers import Floats, Ints, Transfers
from trainscout.simulators.predictor.network.compiled import compiled

WORK = -1


@dataclass(frozen=True, eq=False)
class Message:
    """One communication of a ``kind``: ``bytes`` of ``transfers``, which set out ``delay_s`` after
    it begins."""

    transfers: Transfers
    bytes: float
    delay_s: float
    kind: str = ""


@dataclass(frozen=True, eq=False)
class Activities:
    """Activities in an order of their dependencies, shape (n,).

    ``seconds``: how long each takes with nothing else on the network. ``message``: its place in
    ``messages``, or ``WORK``. ``before[i]`` must have ended before ``after[i]`` begins.
    """

    seconds: Floats
    message: Ints
    before: Ints
    after: Ints
    messages: tuple[Message, ...]

    def followers(self) -> tuple[Ints, Ints]:
        """(first, followers): those of ``i`` are ``followers[first[i] : first[i + 1]]``."""
        first = np.zeros(len(self.seconds) + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.before, minlength=len(self.seconds)), out=first[1:])
        return first, self.after[np.argsort(self.before, kind="stable")]


def alone(of: Activities) -> tuple[Floats, Floats]:
    """When each begins and ends if every communication has the network to itself.

    Raises:
        RuntimeError: when activities wait for each other.
    """
    first, followers = of.followers()
    start, end, done = longest_paths(of.seconds, first, followers)
    if done != len(of.seconds):
        raise RuntimeError(f"{len(of.seconds) - done} activities wait for each other")
    return start, end


@compiled
def longest_paths(seconds, first, followers):  # type: ignore[no-untyped-def]
    """Start and end of each activity, and how many could begin; ``first`` and ``followers`` as of
    ``Activities.followers``."""
    count = len(seconds)
    waits = np.zeros(count, np.int64)
    for other in followers:
        waits[other] += 1
    start = np.zeros(count)
    end = np.zeros(count)
    queue = np.empty(count, np.int64)
    last = 0
    for activity in range(count):
        if waits[activity] == 0:
            queue[last] = activity
            last += 1
    at = 0
    while at < last:
        activity = queue[at]
        at += 1
        end[activity] = start[activity] + seconds[activity]
        for place in range(first[activity], first[activity + 1]):
            other = followers[place]
            start[other] = max(start[other], end[activity])
            waits[other] -= 1
            if waits[other] == 0:
                queue[last] = other
                last += 1
    return start, end, last
