"""How long the device waits for the host where the host must first wait for the device.

Normally the host launches far ahead of the device and only its total time matters
(``passes.sum_blocks``). Where it needs a value from the device (``HostSync``) it stops until the
device has caught up, and what follows starts no sooner than the host launches it.
"""

from __future__ import annotations

from collections.abc import Sequence

# Megatron-Core's dropless dispatchers copy three tables of token counts to the host and read
# each: as much work for the host as launching so many kernels.
SYNC_LAUNCHES = 6


def host_lag_s(work: Sequence[tuple[int, float | None]], launch_s: float) -> float:
    """Seconds the device idles in one of many equal blocks that follow each other.

    ``work`` holds, in launch order, the launches of each operation and the seconds it runs; None
    for one at which the host waits for everything before it. Without such an operation the lag
    is no matter of a single block: zero.
    """
    if not launch_s or all(seconds is not None for _, seconds in work):
        return 0.0
    host = device = ended = 0.0
    # The second block meets the host where the first has left it.
    for _ in range(2):
        ended = device
        for launches, seconds in work:
            if seconds is None:
                host = max(host, device)
            host += launches * launch_s
            if seconds is not None:
                device = max(device, host) + seconds
    busy_s = sum(seconds for _, seconds in work if seconds is not None)
    return max(0.0, device - ended - busy_s)
