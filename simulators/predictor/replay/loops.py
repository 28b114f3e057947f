"""Loops over arrays that run as plain Python until compiling them pays: numba takes half a second
to load, and one step is played in a few thousandths of one without it."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

# Turns of a plain loop, all together: a quarter of what loading numba and what it kept takes. One
# or two recipes stay below, and who plays more than that plays many more.
LOADING_TURNS = 50_000


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
    """A function over arrays, written so that numba compiles it as it stands and that it runs on
    lists as well; both give the same.

    Args:
        written: the function.
        helpers: those of its module that it calls, each after what it calls itself; only the
            function makes arrays.
    """

    def __init__(self, written: Any, *helpers: Any) -> None:
        self._written, self._helpers = written, helpers
        self._turns = 0

    def __call__(self, turns: int, *arrays: Any) -> Any:
        """What the function makes of ``arrays``, which takes it some ``turns``."""
        self._turns += turns
        return (self.plain if self._turns <= LOADING_TURNS else self.compiled)(*arrays)

    def load(self) -> None:
        """Be compiled from now on: for who is sure to play much, while there is time for it."""
        self._turns = max(self._turns, LOADING_TURNS)
        _ = self.compiled

    def plain(self, *arrays: Any) -> tuple[Any, ...]:
        """As plain Python, on lists."""
        names = {**self._written.__globals__, "np": _Lists}
        run = FunctionType(self._written.__code__, names)
        made = run(*(each.tolist() if each.ndim == 1 else each for each in arrays))
        return tuple(np.array(each) if isinstance(each, list) else each for each in made)

    @functools.cached_property
    def compiled(self) -> Callable[..., Any]:
        _load_arrays()
        from trainscout.simulators.predictor.network.compiled import compiled as compile_loop

        names = dict(self._written.__globals__)
        for function in (*self._helpers, self._written):
            # Numba looks names up where a function says: there, what it calls is compiled.
            own = FunctionType(function.__code__, names, function.__name__)
            own.__module__, own.__qualname__ = function.__module__, function.__qualname__
            names[function.__name__] = compile_loop(own)
        compiled: Callable[..., Any] = names[self._written.__name__]
        return compiled


def _load_arrays() -> None:
    """Numba's arrays without a look for BLAS, a third of what loading them takes: what multiplies
    matrices looks for it again."""
    blas = "scipy.linalg.cython_blas"
    if blas not in sys.modules:
        sys.modules[blas] = None  # type: ignore[assignment]
        try:
            importlib.import_module("numba.np.arraymath")
        finally:
            del sys.modules[blas]
