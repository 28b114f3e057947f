"""A communication as transfers between GPUs: what goes where, all of it at once, as steps of long
messages do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Transfers:
    """Transfers of one communication, shape (n,) each.

    ``share``: bytes each moves per byte of the communication (NCCL's size). ``label`` tells those
    between the same two GPUs apart, as channels do.
    """

    source: Ints
    destination: Ints
    share: Floats
    label: Ints

    def __len__(self) -> int:
        return len(self.source)


def transfers(
    pairs: Sequence[tuple[int, int]] | Ints,
    share: Sequence[float] | Floats | float,
    label: Sequence[int] | int = 0,
) -> Transfers:
    """Transfers from plain lists."""
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    count = len(ends)
    return Transfers(
        ends[:, 0],
        ends[:, 1],
        np.broadcast_to(np.asarray(share, dtype=np.float64), (count,)),
        np.broadcast_to(np.asarray(label, dtype=np.int64), (count,)),
    )


def split(what: Transfers, parts: int) -> Transfers:
    """Every transfer as ``parts`` equal ones with labels of their own: several queue pairs a
    connection, or ports a NIC."""
    if parts == 1:
        return what
    return Transfers(
        np.repeat(what.source, parts),
        np.repeat(what.destination, parts),
        np.repeat(what.share / parts, parts),
        (what.label[:, None] * parts + np.arange(parts)).ravel(),
    )


def together(several: Sequence[Transfers]) -> Transfers:
    """Communications that run at the same time, as one."""
    return Transfers(
        np.concatenate([each.source for each in several]),
        np.concatenate([each.destination for each in several]),
        np.concatenate([each.share for each in several]),
        np.concatenate([each.label for each in several]),
    )
