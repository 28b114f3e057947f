"""What ranks leave for each other beside the network: small tensors, objects, metadata.

It passes in no time. Whoever collects something goes on when the last of those who leave it have,
by their clocks: so times do not depend on whose message came first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from trainscout.simulators.virtual_cluster.live.messages import Collect
from trainscout.simulators.virtual_cluster.live.tasks import Wait


class Board:
    """Texts by key, when each was left, and who waits for which. ``ranks`` are those that run."""

    def __init__(self, ranks: Collection[int]) -> None:
        self._ranks = frozenset(ranks)
        self._left_ps: dict[str, int] = {}
        self._awaited: dict[str, list[Wait]] = defaultdict(list)
        # Waits that have got all they were for.
        self.over: list[Wait] = []

    def publish(self, key: str, now_ps: int) -> None:
        """Something is left under ``key``."""
        self._left_ps[key] = now_ps
        for wait in self._awaited.pop(key, ()):
            wait.until_ps = max(wait.until_ps, now_ps)
            wait.waiting_for -= 1
            if not wait.waiting_for:
                self.over.append(wait)

    def collect(self, rank: int, asked: Collect) -> Wait:
        """The wait of ``rank`` for what it asks of ranks that run."""
        wait = Wait(rank, "", None)
        missing = []
        for key, giver in zip(asked.keys, asked.ranks, strict=True):
            left_ps = self._left_ps.get(key)
            if left_ps is not None:
                wait.until_ps = max(wait.until_ps, left_ps)
            elif giver in self._ranks:
                self._awaited[key].append(wait)
                wait.waiting_for += 1
                missing.append(giver)
        others = ", ".join(str(giver) for giver in dict.fromkeys(missing))
        wait.what = f"small tensors or objects of rank {others}"
        return wait
