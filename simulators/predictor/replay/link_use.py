"""How busy the links of one rank are over an operation timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainscout.simulators.predictor.replay.engine import Floats
from trainscout.simulators.predictor.replay.timeline import Timeline

LINKS = ("nvlink", "nic")


@dataclass(frozen=True)
class LinkUse:
    """Bytes per second that one rank sends over one kind of link.

    ``bytes_per_s[i]`` holds from ``at_s[i]`` to ``at_s[i + 1]``; the last one is 0. Over ``nic``
    it is the rank's share of what its node's NICs send, over ``nvlink`` what it sends itself, as
    the prices of communication count them (``CollectivePrice``).
    """

    at_s: Floats
    bytes_per_s: Floats


def link_use(timeline: Timeline, stage: int) -> dict[str, LinkUse]:
    """The use of each of ``LINKS`` by a rank of ``stage``; without links that nothing uses.

    Every communication sends its bytes evenly over the time it takes.
    """
    sent = np.zeros((len(timeline.operations), len(LINKS)))
    for number, priced in enumerate(timeline.operations):
        if priced is not None and priced.communication is not None:
            sent[number] = priced.communication.nvlink_bytes, priced.communication.nic_bytes
    rows = np.flatnonzero(timeline.stage == stage)
    start_s, end_s = timeline.start_s[rows], timeline.end_s[rows]
    found = {}
    for name, sent_bytes in zip(LINKS, sent[timeline.operation[rows]].T, strict=True):
        used = (sent_bytes > 0) & (end_s > start_s)
        if used.any():
            rates = sent_bytes[used] / (end_s[used] - start_s[used])
            found[name] = _sum_of_steps(start_s[used], end_s[used], rates)
    return found


def _sum_of_steps(start_s: Floats, end_s: Floats, rates: Floats) -> LinkUse:
    """The sum of rates that hold from a start to an end each, all of shape (n,)."""
    at_s, place = np.unique(np.concatenate((start_s, end_s)), return_inverse=True)
    change, running = np.zeros(len(at_s)), np.zeros(len(at_s), dtype=np.int64)
    np.add.at(change, place, np.concatenate((rates, -rates)))
    np.add.at(running, place, np.repeat((1, -1), len(rates)))
    # Where nothing runs the sum is 0, not what rounding leaves of it.
    bytes_per_s = np.where(np.cumsum(running) > 0, np.maximum(np.cumsum(change), 0.0), 0.0)
    return LinkUse(at_s, bytes_per_s)
