"""Parts that ranks cut from what all of them know, as each its share of a sequence's positions.

A part is told by where it lies in the whole's memory, and copies of it by what they are copies of.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from . import plain
from .shadow import Grade, Known


@dataclass(frozen=True, eq=False)
class Cut:
    """A tensor's place in ``memory``, the whole's, in elements of ``dtype``; what it is worth."""

    memory: torch.UntypedStorage
    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    offset: int
    grade: Grade

    def parts(self, position: int, size: int) -> Sequence[Known] | None:
        """All ``size`` of them where this one is, along a dimension, that at ``position`` of as
        many equal ones; None where it is not. Single elements are no parts: any rank may take the
        first."""
        elements = self.memory.nbytes() // self.dtype.itemsize
        for length, step in zip(self.shape, self.strides, strict=True):
            row, before = step * length * size, step * length * position
            whole = length > 1 and step and row in (elements, *self.strides)
            if whole and self.offset % row == before:
                first = self.offset - before
                places = (first + at * step * length for at in range(size))
                return [Known(self._at(place), self.grade) for place in places]
        return None

    def _at(self, offset: int) -> torch.Tensor:
        made = plain.empty(0, dtype=self.dtype)
        return made.set_(self.memory, offset, self.shape, self.strides)


class Cuts:
    """Which storages are copies of cuts."""

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[torch.UntypedStorage, Cut] = (
            weakref.WeakKeyDictionary()
        )

    def get(self, tensor: torch.Tensor) -> Cut | None:
        """Of what the tensor is a copy, if it is all of its storage."""
        return self._of.get(tensor.untyped_storage())

    def put(self, tensor: torch.Tensor, cut: Cut | None) -> None:
        """The tensor has become a copy of this."""
        if cut is not None and is_whole(tensor):
            self._of[tensor.untyped_storage()] = cut
        elif self._of:
            self._of.pop(tensor.untyped_storage(), None)


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether it is all of its storage, however often ``expand`` repeats that."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    own = math.prod(length for length, step in pairs if step)
    return bool(own * tensor.itemsize >= tensor.untyped_storage().nbytes())
