"""Ctrl-C, SIGTERM and SIGHUP reach this process once; its workers, and the ending of them, never
see them."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from trainscout.simulators.predictor.io.command_line import STOPPING


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back while processes are started, which then never see it.

    A terminal sends it to the workers too, and one that is starting up or waiting for work would
    print a traceback; stopping them is the parent's task. Windows has no such mask.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C; only for what surely ends soon."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, signal.SIG_IGN) for each in STOPPING}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def interrupts_put_off() -> Iterator[Callable[[], None]]:
    """Let Ctrl-C wait for the next call of what is yielded, which it ends: what lies between two
    calls is done as a whole. A second Ctrl-C waits for nothing."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {each: signal.getsignal(each) for each in STOPPING}
    taken = {each: handler for each, handler in before.items() if callable(handler)}

    def note(signum: int, frame: FrameType | None) -> None:
        came.append(signum)
        if len(came) > 1:
            end()

    def end() -> None:
        if came:
            taken[signal.Signals(came[0])](came[0], None)

    for each in taken:
        signal.signal(each, note)
    try:
        yield end
    finally:
        for each, handler in taken.items():
            signal.signal(each, handler)
