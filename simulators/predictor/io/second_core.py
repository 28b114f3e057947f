"""Two parts of one computation on two cores: one in a process forked from this one, which has all
that this one has read and priced, and ends with its answer."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def is_second_core() -> bool:
    """Whether this process may use one, by a fork.

    Only its main thread may: who searches in several threads would fork while another of them
    imports or compiles, and what was forked would wait for that one's lock for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    # Elsewhere what was forked may not call the system's libraries.
    can = sys.platform == "linux" and hasattr(os, "fork") and hasattr(os, "sched_getaffinity")
    return can and len(os.sched_getaffinity(0)) > 1


def both(here: Callable[[], T], there: Callable[[], T]) -> tuple[T, T]:
    """What both give. ``there`` is computed at the same time where a second core may be used: it
    may compute only, and what it keeps for later is lost."""
    if not is_second_core():
        return here(), there()
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        # Other threads hold nothing that a computation needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reads)
            with os.fdopen(writes, "wb") as answer:
                pickle.dump(there(), answer, protocol=5)
            code = 0
        finally:
            # Nothing that this process would end with is to happen twice.
            os._exit(code)
    os.close(writes)
    try:
        with os.fdopen(reads, "rb") as answer:
            first, content = here(), answer.read()
    finally:
        _, status = os.waitpid(child, 0)
    # What failed there fails here again, and says so.
    return first, there() if status else pickle.loads(content)
