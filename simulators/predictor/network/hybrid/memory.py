"""What flows announced together did, and how to know them again."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field, replace

import numpy as np

from trainscout.simulators.predictor.network.compiled import compiled
from trainscout.simulators.predictor.network.packet.engine_arrays import Floats, Ints
from trainscout.simulators.predictor.network.union_find import root_of


@dataclass(frozen=True, eq=False)
class Rest:
    """A time that was skipped: ``since`` to ``until`` after the opening, of some of an episode's
    ports and flows, at ``speed``."""

    since: int
    until: int
    ports: Ints
    flows: Ints
    speed: Floats

    def stretched(self, by: float) -> Rest:
        return replace(self, since=int(self.since * by), until=int(self.until * by))


@dataclass(frozen=True, eq=False)
class Trains:
    """Payload of one packet of some of an episode's flows, ``since`` so long after the opening."""

    since: int
    flows: Ints
    cut: Ints

    def stretched(self, by: float) -> Trains:
        return replace(self, since=int(self.since * by))


@dataclass(frozen=True, eq=False)
class Recording:
    """An episode that nobody met, from idle links to idle links; times count from its opening.

    ``begins``, ``ends``: of each flow. ``first``, ``last``: of each port, when the first flow over
    it begins and when the last is over.
    """

    begins: Ints
    ends: Ints
    first: Ints
    last: Ints
    rests: tuple[Rest | Trains, ...]

    @functools.cached_property
    def over(self) -> int:
        return int(self.last.max())

    @functools.cached_property
    def was_steady(self) -> bool:
        """Whether any of its time was skipped."""
        return any(isinstance(each, Rest) for each in self.rests)

    def stretched(self, by: float, latency: Ints) -> Recording:
        """What flows do that all begin at once and send ``by`` times the bytes: what is steady
        lasts so much longer or shorter, but for the ``latency`` of each route. As nobody can say
        which port is done with when, all are at the end."""
        under_way = self.ends - self.begins - latency
        ends = self.begins + latency + np.rint(under_way * by).astype(np.int64)
        rests = tuple(each.stretched(by) for each in self.rests)
        last = np.full(len(self.last), ends.max())
        return replace(self, ends=ends, last=last, rests=rests)


@dataclass(eq=False)
class Episode:
    """Flows that were announced together.

    ``ties``: pairs of places in ``flows``; ``inner_waits`` how many of them each flow waits for.
    The rest is known once the first flow starts: the ``ports`` and each route's places in them,
    flows' starts after the opening (``later``).
    """

    number: int
    flows: Ints
    ties: Ints
    inner_waits: Ints
    opened: int = 0
    ports: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    places: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    later: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    key: bytes = b""
    recording: Recording | None = None
    # Whose ports they were before, as far as that was from memory; whether nobody met it.
    below: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    undisturbed: bool = True

    @property
    def over(self) -> int:
        """When all ports are done with, on the engine's clock."""
        assert self.recording is not None
        return self.opened + self.recording.over

    def last(self) -> Ints:
        """When each port is done with, on the engine's clock."""
        assert self.recording is not None
        return self.opened + self.recording.last


def key_of(*tables: Ints | Floats) -> bytes:
    """What an episode is known by: equal tables, equal keys."""
    digest = hashlib.blake2b(digest_size=16)
    for table in tables:
        digest.update(str(table.shape).encode())
        digest.update(np.ascontiguousarray(table).tobytes())
    return digest.digest()


@compiled
def joined(paths, ties, group):  # type: ignore[no-untyped-def]
    """The first of the flows that each can influence, by ports or by ties: shape (flows,).

    ``group``, shape (links,), is scratch, all -1 before and after.
    """
    count = len(paths)
    label = np.arange(count)
    for flow in range(count):
        for hop in range(paths.shape[1]):
            port = paths[flow, hop]
            if port < 0:
                break
            if group[port] < 0:
                group[port] = flow
            else:
                _unite(label, group[port], flow)
    for row in range(len(ties)):
        _unite(label, ties[row, 0], ties[row, 1])
    for flow in range(count):
        label[flow] = root_of(label, flow)
        for hop in range(paths.shape[1]):
            if paths[flow, hop] < 0:
                break
            group[paths[flow, hop]] = -1
    return label


@compiled
def _unite(label, one, other):  # type: ignore[no-untyped-def]
    """The lower flow leads."""
    one, other = root_of(label, one), root_of(label, other)
    label[max(one, other)] = min(one, other)


@compiled
def spans(places, begins, ends, first, last):  # type: ignore[no-untyped-def]
    """When the first flow over each port begins, and when the last is over.

    ``places``: each route's ports, shape (flows, hops), filled up with -1.
    """
    for flow in range(len(places)):
        for hop in range(places.shape[1]):
            port = places[flow, hop]
            if port >= 0:
                first[port] = min(first[port], begins[flow])
                last[port] = max(last[port], ends[flow])
