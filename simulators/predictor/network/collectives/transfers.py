"""A communication as transfers between GPUs: what goes where, all of it at once, as steps of long
messages do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.question.errors import InputError

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


def groups(world_size: int, span: tuple[tuple[int, int], ...]) -> Ints:
    """All groups of one dimension, shape (groups, members): every GPU is in exactly one.

    Args:
        world_size: GPUs in all.
        span: (how many, how far apart) of each dimension that a group runs along, innermost
            first; ``((2, 1), (4, 16))`` are pairs of neighbours, four of them 16 apart.

    Raises:
        InputError: for spans that do not divide the GPUs into such groups.
    """
    members = np.zeros(1, dtype=np.int64)
    for count, stride in span:
        members = (np.arange(count)[:, None] * stride + members).ravel()
    # The first GPU of a group has none of its group below it.
    everyone = np.arange(world_size)
    first = np.ones(world_size, dtype=np.bool_)
    for count, stride in span:
        first &= everyone // stride % count == 0
    found: Ints = everyone[first][:, None] + members
    if found.size != world_size or found.max() >= world_size:
        raise InputError("span", span, f"does not divide {world_size} GPUs", "factors of them")
    return found
