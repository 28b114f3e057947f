"""A communication as transfers between GPUs: what goes where, and what has to arrive before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Transfers:
    """Transfers of one communication, shape (n,) each, in an order in which they may be announced.

    ``share``: bytes each moves per byte of the communication (NCCL's size). ``label`` tells those
    between the same two GPUs apart, as channels do. ``after``: pairs (transfer, earlier
    transfer), shape (m, 2): the first waits until the second has arrived.
    """

    source: Ints
    destination: Ints
    share: Floats
    label: Ints
    after: Ints

    def __len__(self) -> int:
        return len(self.source)


def transfers(
    pairs: Sequence[tuple[int, int]] | Ints,
    share: Sequence[float] | Floats | float,
    label: Sequence[int] | int = 0,
    after: Sequence[tuple[int, int]] = (),
) -> Transfers:
    """Transfers from plain lists."""
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    count = len(ends)
    return Transfers(
        ends[:, 0],
        ends[:, 1],
        np.broadcast_to(np.asarray(share, dtype=np.float64), (count,)),
        np.broadcast_to(np.asarray(label, dtype=np.int64), (count,)),
        np.array(after, dtype=np.int64).reshape(-1, 2),
    )


def split(what: Transfers, parts: int) -> Transfers:
    """Every transfer as ``parts`` equal ones with labels of their own, which wait for all parts of
    what it waits for: several queue pairs a connection, or ports a NIC."""
    if parts == 1:
        return what
    part = np.arange(parts)
    waits = what.after[:, None, None, :] * parts + np.stack(
        np.broadcast_arrays(part[:, None], part[None, :]), axis=-1
    )
    return Transfers(
        np.repeat(what.source, parts),
        np.repeat(what.destination, parts),
        np.repeat(what.share / parts, parts),
        (what.label[:, None] * parts + part).ravel(),
        waits.reshape(-1, 2),
    )


def together(several: Sequence[Transfers]) -> Transfers:
    """Communications that run at the same time, as one."""
    first = np.cumsum([0, *(len(each) for each in several)])
    after = [each.after + start for each, start in zip(several, first, strict=False)]
    return Transfers(
        np.concatenate([each.source for each in several]),
        np.concatenate([each.destination for each in several]),
        np.concatenate([each.share for each in several]),
        np.concatenate([each.label for each in several]),
        np.concatenate(after),
    )


def in_turn(several: Sequence[Transfers]) -> Transfers:
    """Phases of a communication: a transfer waits for all of the phase before that reach its
    source."""
    whole = several[0]
    start = 0
    for phase in several[1:]:
        arrived: dict[int, list[int]] = {}
        for number in range(start, len(whole)):
            arrived.setdefault(int(whole.destination[number]), []).append(number)
        start = len(whole)
        waits = [
            (start + number, before)
            for number, source in enumerate(phase.source.tolist())
            for before in arrived.get(source, ())
        ]
        joined = together([whole, phase])
        pairs = np.array(waits, dtype=np.int64).reshape(-1, 2)
        whole = Transfers(
            joined.source,
            joined.destination,
            joined.share,
            joined.label,
            np.concatenate([joined.after, pairs]),
        )
    return whole
