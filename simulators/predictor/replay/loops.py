"""Loops over arrays that run as plain Python until compiling them pays: that takes a tenth of a
second, and one step is played in a few thousandths of one without it."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

# Turns of a plain loop, all together: half of what compiling takes. One or two recipes stay below,
# and who plays more than that plays many more.
COMPILING_TURNS = 20_000


class _Lists:
    """Makes lists where NumPy makes arrays of one dimension: plain Python reads and writes their
    elements several times as fast."""

    int64, bool_ = np.int64, np.bool_

    @staticmethod
    def full(shape: Any, value: Any, dtype: type = np.float64) -> Any:
        return np.full(shape, value, dtype) if isinstance(shape, tuple) else [value] * shape

    @classmethod
    def zeros(cls, count: int, dtype: type = np.float64) -> Any:
        return cls.full(count, dtype(0).item())

    @classmethod
    def ones(cls, count: int) -> Any:
        return cls.full(count, 1.0)

    empty = zeros


class Loop:
    """A function over arrays, written so that ``compiling`` reads it and that it runs on lists as
    well; both give the same.

    Args:
        written: takes the arrays given and those made, and returns a whole number.
        made: makes arrays for those given, of which it fills some.
    """

    def __init__(self, written: Any, made: Any) -> None:
        self._written, self._made = written, made
        self._turns = 0
        self._compiled: Callable[..., int] | None = None

    @property
    def is_compiled(self) -> bool:
        return self._compiled is not None

    def __call__(self, turns: int, *arrays: Any) -> tuple[Any, ...]:
        """The arrays made and what the function returns, which takes it some ``turns``."""
        self._turns += turns
        return (self.plain if self._turns <= COMPILING_TURNS else self.compiled)(*arrays)

    def plain(self, *arrays: Any) -> tuple[Any, ...]:
        """As plain Python, on lists."""
        names = {**self._made.__globals__, "np": _Lists}
        lists = [each.tolist() if each.ndim == 1 else each for each in arrays]
        made = FunctionType(self._made.__code__, names)(*lists)
        returned = self._written(*lists, *made)
        return (*(np.array(each) for each in made), returned)

    def compiled(self, *arrays: Any) -> tuple[Any, ...]:
        """As machine code."""
        made = self._made(*arrays)
        if self._compiled is None:
            # LLVM takes a twentieth of a second to load.
            from trainscout.simulators.predictor.replay.compiling import compiled

            self._compiled = compiled(self._written, (*arrays, *made))
        return (*made, self._compiled(*arrays, *made))
