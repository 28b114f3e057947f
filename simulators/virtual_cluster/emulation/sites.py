"""Where in the script or its framework something was called from."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType

from trainscout.simulators.virtual_cluster.traces.events import Site

_OWN = str(Path(__file__).parent) + os.sep


class Sites:
    """Numbers for places in source code; each is announced once.

    The place is the innermost Python frame outside torch and the emulator. Backward of built-in
    operations runs without a Python frame and has none.
    """

    def __init__(self, skipped: tuple[str, ...], announce: Callable[[Site], None]) -> None:
        self._skipped = (_OWN, "<frozen", "<string>", *skipped)
        self._announce = announce
        self._foreign: dict[CodeType, bool] = {}
        self._numbers: dict[tuple[CodeType, int], int] = {}
        self._texts: list[str] = []

    def current(self) -> int | None:
        """The number of the place now executing, or None."""
        frame = sys._getframe(1)
        foreign = self._foreign
        while frame is not None:
            code = frame.f_code
            outside = foreign.get(code)
            if outside is None:
                outside = foreign[code] = not code.co_filename.startswith(self._skipped)
            if outside:
                key = (code, frame.f_lineno)
                number = self._numbers.get(key)
                if number is None:
                    number = self._numbers[key] = len(self._numbers)
                    name = code.co_qualname
                    self._texts.append(f"{code.co_filename}:{frame.f_lineno}")
                    self._announce(Site(number, code.co_filename, frame.f_lineno, name))
                return number
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def text(self, number: int | None) -> str:
        """A place as ``file:line``."""
        return "a place below Python" if number is None else self._texts[number]

    def restart(self) -> None:
        """Announce every place again: a new trace begins."""
        self._numbers.clear()
        self._texts.clear()
