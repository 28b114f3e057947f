"""How much memory worker processes on this machine may still take."""

from __future__ import annotations

import re
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")

# Left to everything else that runs here.
_SHARE_FOR_WORKERS = 0.9


def free_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Memory that can be taken without swapping, within the container's limit.

    None where the system does not say (other systems than Linux).
    """
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text("utf-8"), re.MULTILINE)
    except OSError:
        return None
    if found is None:
        return None
    free = int(found[1]) * 1024
    try:
        limit = (cgroup / "memory.max").read_text("utf-8").strip()
        used = int((cgroup / "memory.current").read_text("utf-8"))
        # Page cache counts as used but is given back when somebody asks.
        cached = re.search(
            r"^inactive_file (\d+)", (cgroup / "memory.stat").read_text("utf-8"), re.M
        )
    except (OSError, ValueError):
        return free
    if not limit.isdigit():
        return free
    return max(0, min(free, int(limit) - used + (int(cached[1]) if cached else 0)))


def affordable_workers(count: int, peak_bytes: int, free: int | None) -> int:
    """How many of ``count`` running workers there is memory for, at least one.

    Args:
        count: workers that run now.
        peak_bytes: the most that any of them has held.
        free: what is free beside them (None: unknown, then all are affordable).
    """
    if free is None or peak_bytes <= 0:
        return count
    # What the workers hold now is theirs already; each may come to hold its peak.
    budget = (free + count * peak_bytes) * _SHARE_FOR_WORKERS
    return max(1, min(count, int(budget // peak_bytes)))
