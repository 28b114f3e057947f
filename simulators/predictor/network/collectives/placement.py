"""Which GPUs the groups of one dimension are."""

from __future__ import annotations

import numpy as np

from trainscout.simulators.predictor.question.errors import InputError

from .transfers import Ints


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
