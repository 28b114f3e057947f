"""A rank's end of the connection: its events go to the simulator, its clock comes from there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from trainscout.simulators.virtual_cluster.emulation.unknown_values import Unknown
from trainscout.simulators.virtual_cluster.traces.codec import MalformedError
from trainscout.simulators.virtual_cluster.traces.events import Event

from .clock import HostClock
from .messages import (
    OF_SIMULATOR,
    AskElapsed,
    Change,
    Collect,
    Figures,
    Publish,
    Sent,
    Sleep,
    Turn,
    blocks,
    frame,
    receive,
)

# Events are sent together; others wait for what this rank may still launch, so not too late.
_MOST_EVENTS = 512
_LONGEST_S = 0.05


class LiveSink:
    """Sends events in batches and stops the script where the host would stop.

    What threads that the script started hand over and collect goes by connections of their own:
    they stop neither the host nor its clock.

    Args:
        connection: to the simulator, after the hello.
        clock: the rank's own.
        connect_thread: makes the connection of one more thread, after its hello.
        further: also gets every event (a trace file's writer).
    """

    def __init__(
        self,
        connection: socket.socket,
        clock: HostClock,
        connect_thread: Callable[[], socket.socket],
        further: Callable[[Event], None] | None = None,
    ) -> None:
        self.clock = clock
        self._connection = connection
        self._connect_thread = connect_thread
        self._of_thread = threading.local()
        self._further = further
        self._unsent: list[Sent] = []
        self._sent_s = perf_counter()
        self._lock = threading.RLock()
        # Whether the host stands still until the simulator lets it go on.
        self.waits = False

    def emit(self, event: Event) -> None:
        """One event; returns when the host may go on.

        Raises:
            EOFError: when the simulator has gone.
        """
        with self._lock:
            self.clock.apply(event)
            self._unsent.append(event)
            if self._further is not None:
                self._further(event)
            if blocks(event):
                self._flush()
                self._wait()
            elif len(self._unsent) >= _MOST_EVENTS or perf_counter() - self._sent_s > _LONGEST_S:
                self._flush()

    def elapsed_ms(self, start: int, end: int) -> float:
        """Milliseconds of simulated time between the last records of two events."""
        with self._lock:
            self._send(AskElapsed(start, end))
            elapsed_ms = self._wait().elapsed_ms
        if elapsed_ms is None:
            raise MalformedError("a turn without the time that was asked for")
        return elapsed_ms

    def sleep(self, seconds: float) -> None:
        """Pass simulated time; other ranks may run meanwhile."""
        with self._lock:
            self._send(Sleep(seconds))
            self._wait()

    def publish(self, key: str, text: str) -> None:
        """Leave a small tensor or object where other ranks find it, at this rank's time."""
        beside = self._beside()
        if beside is not None:
            beside.sendall(frame([Publish(key, text)]))
            return
        with self._lock:
            self._send(Publish(key, text))

    def collect(self, keys: Sequence[str], ranks: Sequence[int]) -> list[str | None]:
        """What each of ``ranks`` leaves under its key, once all have; None of one not run."""
        if not keys:
            return []
        request = Collect(tuple(keys), tuple(ranks))
        beside = self._beside()
        if beside is not None:
            beside.sendall(frame([request]))
            return list(OF_SIMULATOR.decode(receive(beside)).collected)
        with self._lock:
            self._send(request)
            return list(self._wait().collected)

    def change(self, key: str, how: str, value: str, expected: str) -> str:
        """What all ranks see under ``key`` from now on."""
        change = Change(key, how, value, expected)
        beside = self._beside()
        if beside is not None:
            beside.sendall(frame([change]))
            (made,) = OF_SIMULATOR.decode(receive(beside)).collected
        else:
            with self._lock:
                self._send(change)
                (made,) = self._wait().collected
        return str(made)

    def wait_for_turn(self) -> None:
        """Until the simulator lets this rank begin."""
        with self._lock:
            self._wait()

    def finish(self, figures: Figures, unknown: Iterable[Unknown] = ()) -> None:
        """The script has ended."""
        with self._lock:
            self._send(*unknown, figures)

    def close(self) -> None:
        """Nothing more is to be sent than ``finish`` will."""
        with self._lock:
            self._flush()

    def _beside(self) -> socket.socket | None:
        """The connection of a thread that the script started; None on the host's own.

        Threads of torch's autograd, which Python knows as dummies, work while the host waits.
        """
        thread = threading.current_thread()
        if thread is threading.main_thread() or isinstance(thread, threading._DummyThread):
            return None
        if not hasattr(self._of_thread, "connection"):
            self._of_thread.connection = self._connect_thread()
        connection: socket.socket = self._of_thread.connection
        return connection

    def _send(self, *messages: Sent) -> None:
        self._unsent += messages
        self._flush()

    def _flush(self) -> None:
        if self._unsent:
            messages, self._unsent = self._unsent, []
            self._connection.sendall(frame(messages))
        self._sent_s = perf_counter()

    def _wait(self) -> Turn:
        self.waits = True
        turn: Turn = OF_SIMULATOR.decode(receive(self._connection))
        self.waits = False
        self.clock.wait_until(turn.now_ps)
        return turn
