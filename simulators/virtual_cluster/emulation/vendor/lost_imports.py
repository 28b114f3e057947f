"""Imports that failed, and after which the script went on without what it asked for.

Scripts guard them (``try: import deep_ep``), so that what fails later says nothing of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from types import FrameType

from .packages import PACKAGES, needs_own_python

_EMULATED = {top: name for name, each in PACKAGES.items() for top in (name, *each.modules)}
# Modules of these that launch nothing.
_WITHOUT_KERNELS = ("apex.contrib.nccl_allocator",)
# What guards imports for many scripts, of which this one needs few.
_LIBRARIES = (f"{os.sep}site-packages{os.sep}", os.path.dirname(os.__file__) + os.sep, "<")


class LostImports(MetaPathFinder):
    """Stands last of all finders: what it is asked for, nobody has found.

    It keeps modules of emulated packages, and all that the script's own files ask for.

    Args:
        without: emulated packages that are asked to be absent.
    """

    def __init__(self, without: Iterable[str]) -> None:
        self._without = frozenset(without)
        self._places: dict[str, str] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        """Finds nothing."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            if "importlib.util" in frame.f_code.co_filename:
                # It is only asked whether there is one.
                return
            frame = frame.f_back
        package = _EMULATED.get(_top(name))
        if frame is None or package in self._without:
            return
        file = frame.f_code.co_filename
        if package is not None or is_own_file(file):
            self._places.setdefault(name, f"{file}:{frame.f_lineno}")

    def found(self) -> list[tuple[str, str]]:
        """Names, and where they were first imported."""
        return [each for each in self._places.items() if not sys.modules.get(each[0])]


def is_own_file(file: str) -> bool:
    """Whether a file is the script's own, and no library's."""
    return not any(part in file for part in _LIBRARIES)


def lost_imports() -> list[tuple[str, str]]:
    """As ``LostImports.found``, of this process."""
    finders = [finder for finder in sys.meta_path if isinstance(finder, LostImports)]
    return [each for finder in finders for each in finder.found()]


def lost_kernels() -> list[tuple[str, str]]:
    """Those of packages that are said to be installed, and are not, or not whole."""
    return [
        (name, place)
        for name, place in lost_imports()
        if name not in _WITHOUT_KERNELS and needs_own_python(_EMULATED.get(_top(name), ""))
    ]


def _top(name: str) -> str:
    return name.partition(".")[0]
