"""What ranks that one command runs one after another leave for each other.

In a job they run at the same time: a checkpoint that another rank saves at the end is not there
when this one begins.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import struct
import sys
import time
from pathlib import Path
from typing import Any

from trainscout.simulators.virtual_cluster.traces.invariants import Finding

_WRITES = os.O_WRONLY | os.O_RDWR
_LISTED = 4


class RanksBefore:
    """Shared by ranks that one process forks: how far those that have ended came."""

    def __init__(self) -> None:
        self._began_s = time.time()
        self._steps = mmap.mmap(-1, 8)

    def watch(self, besides: Path | None) -> list[str]:
        """Files that this rank reads from now on and ranks before it wrote, as they are found;
        ``besides``: of this folder none, in which they leave what they send."""
        found: list[str] = []
        started_s = time.time()

        def audit(event: str, args: tuple[Any, ...]) -> None:
            if event != "open" or not isinstance(args[0], str) or (args[2] or 0) & _WRITES:
                return
            if args[0] in found or args[0].endswith(".pyc"):
                return
            if besides is not None and os.path.dirname(args[0]) == str(besides):
                return
            with contextlib.suppress(OSError):
                state = os.stat(args[0])
                written = self._began_s <= state.st_mtime < started_s
                if written and stat.S_ISREG(state.st_mode):
                    found.append(args[0])

        if self._most:
            sys.addaudithook(audit)
        return found

    @property
    def _most(self) -> int:
        return int(struct.unpack("q", self._steps[:])[0])

    def ended(self, rank: int, steps: int, read: list[str]) -> tuple[Finding, ...]:
        """A rank has taken ``steps`` optimizer steps: what it read may be why they are fewer."""
        most = self._most
        self._steps[:] = struct.pack("q", max(most, steps))
        if steps >= most or not read:
            return ()
        more = f" and {len(read) - _LISTED} more" if len(read) > _LISTED else ""
        return (
            Finding(
                "ranks at the same time",
                rank,
                "whole trace",
                f"{steps} optimizer steps, where a rank before it took {most}; it read what ranks "
                f"of this command had written: {', '.join(read[:_LISTED])}{more}",
                "if that is a checkpoint, end every rank before it saves (--steps N), or let none "
                "be loaded",
                certain=False,
            ),
        )
