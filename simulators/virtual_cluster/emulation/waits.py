"""A watchdog that says where a rank waits: on its own it would wait for ever without a word."""

from __future__ import annotations

import _thread
import sys
import threading
import time
import traceback
from collections.abc import Callable

# Clocks that live mode does not replace.
from time import monotonic as _monotonic
from time import sleep as _sleep

WAIT_S = 60.0
# A rank that waits spends less than this share of the time on its processor.
_IDLE_SHARE = 0.01


def watch(rank: int, wait_s: float = WAIT_S) -> Callable[[], None]:
    """From now on, print where the main thread stands whenever it has waited for ``wait_s``.

    Returns:
        What ends that.
    """
    ended: list[bool] = []
    main = threading.main_thread().ident
    assert main is not None
    # No ``threading.Thread``: those of the script's process use the emulated device.
    _thread.start_new_thread(_watch, (rank, wait_s, main, ended))
    return lambda: ended.append(True)


def _watch(rank: int, wait_s: float, main: int, ended: list[bool]) -> None:
    since_s, cpu_s = _monotonic(), time.process_time()
    while not ended:
        _sleep(wait_s / 12)
        now_s, now_cpu_s = _monotonic(), time.process_time()
        if now_cpu_s - cpu_s > _IDLE_SHARE * wait_s:
            since_s, cpu_s = now_s, now_cpu_s
        elif now_s - since_s >= wait_s:
            frame = sys._current_frames().get(main)
            stack = traceback.extract_stack(frame)
            places = " <- ".join(
                f"{each.filename}:{each.lineno} in {each.name}" for each in reversed(stack[-4:])
            )
            waited_s = now_s - since_s
            sys.stderr.write(f"rank {rank} has waited for {waited_s:.0f} s: {places}\n")
            since_s, cpu_s = now_s, now_cpu_s
