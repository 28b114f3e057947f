"""What a block mask of FlexAttention leaves of the scores.

Its kernels skip blocks that the mask leaves empty and compute all others whole. How many those
are the device knows; here it follows from tokens, positions and windows that entered it exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from .values.call import CANNOT
from .values.defaults import FOLLOWED_ELEMENTS
from .values.shadow import Grade
from .values.values import Values


def is_block_mask(argument: Any) -> bool:
    """Lengths of queries and keys first, the mask's function last."""
    return isinstance(argument, tuple) and len(argument) > 3 and callable(argument[-1])


def computed_share(mask: Sequence[Any], values: Values) -> float | None:
    """Of all scores, the share that lies in blocks that are computed; None where nobody knows.

    Args:
        mask: ``BlockMask.as_tuple()``: lengths, counts and places of partial and of full blocks
            by row of blocks, ..., tokens a block of queries and of keys, the mask's function.
    """
    queries, keys, partial, _, full = mask[:5]
    cells = -(-queries // mask[-3]) * -(-keys // mask[-2])
    readings = [values.read(count, "mask") for count in (partial, full) if count is not None]
    if all(reading.grade == Grade.EXACT.label for reading in readings):
        # Counts below none, as scripts that subtract full blocks make them, are none.
        blocks = sum(float(reading.value.clamp(min=0).sum()) for reading in readings)
        return blocks / (cells * partial.shape[0] * partial.shape[1])
    if cells * partial.shape[0] > FOLLOWED_ELEMENTS:
        return None
    try:
        with _OnHost(values), torch.no_grad():
            return _seen_at_corners(mask, partial.shape[0])
    except (*CANNOT, _UnknownError):
        return None


def _seen_at_corners(mask: Sequence[Any], batch: int) -> float:
    """The share of blocks of which a corner is seen.

    The corners of a block hold its nearest and its farthest pair of tokens: of masks that leave
    bands and documents, a block without a corner is empty.
    """
    queries, keys, *_, rows, columns, sees = mask
    first = torch.tensor(0)
    ends = [
        (torch.arange(0, length, block), torch.arange(block - 1, length + block - 1, block))
        for length, block in ((queries, rows), (keys, columns))
    ]
    total = 0.0
    for sequence in range(batch):
        seen = torch.zeros((), dtype=torch.bool)
        for row, column in itertools.product(*ends):
            row, column = row.clamp(max=queries - 1), column.clamp(max=keys - 1)
            seen = seen | sees(torch.tensor(sequence), first, row[:, None], column[None, :])
        total += float(seen.double().mean())
    return total / batch


class _UnknownError(Exception):
    """A mask closes over a tensor of which nothing is known."""


class _OnHost(TorchDispatchMode):
    """Computes in host memory, with what is known of the device's tensors."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self._values = values

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(self._known, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _known(self, value: Any) -> Any:
        if not isinstance(value, FakeTensor):
            return value
        reading = self._values.read(value, "mask")
        if reading.grade != Grade.EXACT.label:
            raise _UnknownError
        return reading.value
