"""Loops over arrays that run as plain Python until compiling them pays: numba takes half a second
to load, and one step is played in a few hundredths of one without it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

# Turns of a plain loop, all together, that take about as long as loading numba and what it kept.
LOADING_TURNS = 30_000


class Loop:
    """A function over arrays, written so that numba compiles it as it stands; both give the same.

    Args:
        plain: the function.
        helpers: those of its module that it calls, each after what it calls itself.
    """

    def __init__(self, plain: Any, *helpers: Any) -> None:
        self.plain, self._helpers = plain, helpers
        self._turns = 0

    def __call__(self, turns: int, *arrays: Any) -> Any:
        """What the function makes of ``arrays``, which takes it some ``turns``."""
        self._turns += turns
        return (self.plain if self._turns <= LOADING_TURNS else self.compiled)(*arrays)

    @functools.cached_property
    def compiled(self) -> Callable[..., Any]:
        from numba import njit

        names = dict(self.plain.__globals__)
        for function in (*self._helpers, self.plain):
            # Numba looks names up where a function says: there, what it calls is compiled.
            own = FunctionType(function.__code__, names, function.__name__)
            own.__module__, own.__qualname__ = function.__module__, function.__qualname__
            names[function.__name__] = njit(cache=True)(own)
        compiled: Callable[..., Any] = names[self.plain.__name__]
        return compiled
