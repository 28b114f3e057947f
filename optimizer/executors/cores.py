"""One core for one process, so that the host times it measures are not a neighbour's."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path


@functools.cache
def pin_to_a_core() -> int | None:
    """Keep this process on one core that no other pinned process of this machine is on.

    The core is taken by locking a file until the process ends, so processes of several searches
    do not meet on it. None, and no pinning, when every core is taken or the system cannot pin.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    import fcntl

    directory = Path(tempfile.gettempdir()) / f"trainscout-cores-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    for core in sorted(os.sched_getaffinity(0)):
        lock = os.open(directory / str(core), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        os.sched_setaffinity(0, {core})
        return core
    return None
