"""The simulator's side: receives the ranks' messages, plays them, decides who may run.

One process, one thread. A rank runs from one wait to the next; of those that may, as many run at
the same time as there are cores, those with the earliest clocks first, so that CPU time is not
stretched by crowding and time can pass soonest.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import TextIO

from trainscout.simulators.predictor.io.command_line import (
    BAD_INPUT,
    EMULATOR_GAP,
    FAILURE,
    IMPOSSIBLE_LAUNCHES,
)
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.report import WAIT_S
from trainscout.simulators.virtual_cluster.emulation.unknown_values import Unknown
from trainscout.simulators.virtual_cluster.traces.codec import MalformedError
from trainscout.simulators.virtual_cluster.traces.rank_walk import UseError
from trainscout.simulators.virtual_cluster.walk.rendezvous import MismatchError

from .messages import (
    Change,
    Collect,
    Figures,
    Finish,
    Hello,
    Message,
    Publish,
    Turn,
    blocks,
    read_messages,
    receive,
    turn_frame,
)
from .rank_process import end_all
from .simulation import DeadlockError, Release, Simulation

_READ_BYTES = 1 << 18
_NOTICE_S = 1.0
# Of ranks that wait, so many are named.
_MOST_WAITS = 16
# Ranks that run and say nothing for so long may wait for one that has no core: a file, a lock,
# workers that meet in shared memory.
_CROWD_S = 5.0


class LiveError(RuntimeError):
    """A live run that could not go on; ``code`` is what the command exits with."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class _Rank:
    """A rank's connection and where it stands."""

    number: int
    connection: socket.socket | None = None
    # Its connections, and what takes what comes next on each; EOFError: nothing will.
    receivers: dict[socket.socket, Callable[[socket.socket], None]] = field(default_factory=dict)
    running: bool = False
    # The keys of what it collects.
    collects: tuple[str, ...] = ()
    # What it made of something that all may change.
    changed: tuple[str, ...] = ()
    figures: Figures | None = None
    unknown: list[Unknown] = field(default_factory=list)
    exit_code: int | None = None

    @property
    def ended(self) -> bool:
        """Whether its process has, and all that it sent and printed has come."""
        return self.exit_code is not None and not self.receivers


@dataclass
class _Thread:
    """A thread of a rank beside its host, and what it stands still for."""

    rank: int
    collects: Collect | None = None


@dataclass(frozen=True)
class Measured:
    """What a run took: the figures of ranks that came to their end, wall seconds, CPU seconds of
    the simulation; and what all ranks went on with that nobody knew."""

    figures: dict[int, Figures]
    unknown: tuple[Unknown, ...]
    wall_s: float
    simulation_cpu_s: float


class LiveServer:
    """Runs ranks' processes against a simulation until all have ended.

    Args:
        simulation: with a host for every rank of the options.
        start: starts the ranks' processes, given the address to call; the one returned reports
            how each has ended (``rank_process.main``).
        cores: how many ranks run at the same time.
        timeout_s: longest wall time without a message from any rank that runs.
        show: takes each line a rank prints.
        steps: how many each rank takes at most, or None.
    """

    def __init__(
        self,
        simulation: Simulation,
        start: Callable[[str], subprocess.Popen[str]],
        *,
        cores: int,
        timeout_s: float,
        show: Callable[[int, str], None],
        steps: int | None = None,
    ) -> None:
        self._simulation = simulation
        self._steps = steps
        self._enough = False
        self._start = start
        self._cores = cores
        self._timeout_s = timeout_s
        self._show = show
        self._ranks = {rank: _Rank(rank) for rank in simulation.hosts}
        self._turns: list[Release] = [Release(rank, 0) for rank in simulation.hosts]
        self._selector = selectors.DefaultSelector()
        # None: the ranks are still being prepared.
        self._received_s: float | None = None
        # When a rank was last let go on, and for how long none may be before that is said.
        self._turn_s = time.monotonic()
        self._patience_s = WAIT_S
        self._simulated_s = 0.0
        self._published: dict[str, str] = {}
        self._threads: dict[socket.socket, _Thread] = {}
        # Why nothing can happen unless a thread makes it.
        self._stuck = ""

    def run(self) -> Measured:
        """Start the processes and serve them to their end.

        Raises:
            LiveError: when ranks wait for each other for ever, one fails or falls silent, or
                sends what cannot be.
        """
        began_s = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="trainscout-live-") as folder:
            address = str(Path(folder) / "simulator")
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(address)
            listener.listen(2 * len(self._ranks))
            self._selector.register(listener, selectors.EVENT_READ, self._accept)
            process = self._start(address)
            try:
                assert process.stdout is not None
                self._selector.register(process.stdout, selectors.EVENT_READ, self._child_ended)
                self._serve(process)
            finally:
                end_all(process)
                self._selector.close()
                listener.close()
        figures = {rank: each.figures for rank, each in self._ranks.items() if each.figures}
        return Measured(figures, self.unknown, time.perf_counter() - began_s, self._simulated_s)

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        """What ranks that have ended went on with that nobody knew."""
        return tuple(each for rank in self._ranks.values() for each in rank.unknown)

    def _serve(self, process: subprocess.Popen[str]) -> None:
        while not self._enough and not all(each.ended for each in self._ranks.values()):
            for key, _ in self._selector.select(_NOTICE_S):
                key.data(key.fileobj)
            self._check_ends()
            if process.poll() not in (None, 0):
                raise LiveError("the ranks could not be started", process.returncode)
            self._play()
            self._give_turns()
            self._check_silence()
            self._say_who_waits()

    # Receiving

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.settimeout(self._timeout_s)
        # It says first whose it is, and is known from then on: what may yet come is no deadlock.
        try:
            (hello,) = read_messages(receive(connection))
        except EOFError:
            connection.close()
            return
        if not isinstance(hello, Hello) or hello.rank not in self._ranks:
            raise LiveError("somebody else called", FAILURE)
        self._received_s = time.monotonic()
        rank = self._ranks[hello.rank]
        if hello.purpose == "output":
            rank.receivers[connection] = _Lines(rank.number, self._show).take
        elif hello.purpose == "thread":
            thread = self._threads[connection] = _Thread(rank.number)
            rank.receivers[connection] = lambda one: self._feed_thread(thread, one)
        else:
            rank.connection = connection
            rank.receivers[connection] = lambda one: self._feed(rank, one)
        self._selector.register(
            connection, selectors.EVENT_READ, lambda one: self._receive(rank, one)
        )

    def _receive(self, rank: _Rank, connection: socket.socket) -> bool:
        """Hand on what has come next; False when there was nothing yet."""
        if connection not in rank.receivers or not wait([connection], 0):
            return False
        try:
            rank.receivers[connection](connection)
        except TimeoutError:
            return False
        except (EOFError, ConnectionResetError):
            self._selector.unregister(connection)
            connection.close()
            del rank.receivers[connection]
            self._threads.pop(connection, None)
        return True

    def _feed(self, rank: _Rank, connection: socket.socket) -> None:
        self._received_s = time.monotonic()
        began_s = time.thread_time()
        try:
            messages = self._messages(rank, receive(connection))
            if messages is None:
                return
            rank.running = not any(blocks(each) or isinstance(each, Finish) for each in messages)
            self._simulation.feed(rank.number, messages)
        except (MalformedError, UseError, MismatchError) as error:
            raise LiveError(str(error), IMPOSSIBLE_LAUNCHES) from error
        except InputError as error:
            raise LiveError(str(error), BAD_INPUT) from error
        self._simulated_s += time.thread_time() - began_s

    def _feed_thread(self, thread: _Thread, connection: socket.socket) -> None:
        self._received_s = time.monotonic()
        for message in read_messages(receive(connection)):
            if isinstance(message, Publish):
                self._published[message.key] = message.payload
                self._simulation.publish(thread.rank, message.key)
            elif isinstance(message, Change):
                self._answer(connection, Turn(0, collected=(self._change(message),)))
                self._simulation.publish(thread.rank, message.key)
            elif isinstance(message, Collect):
                thread.collects = message

    def _messages(self, rank: _Rank, text: str) -> list[Message] | None:
        """What a frame of a rank holds for the simulation; None: its script has failed."""
        found: list[Message] = []
        for message in read_messages(text):
            match message:
                case Hello():
                    raise MalformedError("a second hello")
                case Unknown():
                    rank.unknown.append(message)
                    continue
                case Publish():
                    self._published[message.key] = message.payload
                case Change():
                    rank.changed = (self._change(message),)
                    if rank.changed[0]:
                        found.append(Publish(message.key, rank.changed[0]))
                    message = Collect((), ())
                case Collect():
                    rank.collects = message.keys
                case Figures():
                    rank.figures = message
                    if message.code:
                        # Others may wait for it: the run ends with the reason, not a deadlock.
                        rank.exit_code = message.code
                        return None
                    message = Finish()
            found.append(message)
        return found

    def _child_ended(self, stream: TextIO) -> None:
        line = stream.readline()
        if not line:
            self._selector.unregister(stream)
            return
        number, code = map(int, line.split())
        rank = self._ranks[number]
        rank.exit_code = code if code >= 0 else 128 - code
        rank.running = False

    def _check_ends(self) -> None:
        """Take the last messages of ranks that have ended.

        A rank's own children may keep its connections open; all that it wrote has come by now.
        """
        for rank in self._ranks.values():
            if rank.exit_code is not None:
                for connection in list(rank.receivers):
                    while self._receive(rank, connection):
                        pass
                    if connection in rank.receivers:
                        connection.shutdown(socket.SHUT_RD)
                        self._receive(rank, connection)
            if rank.ended and (rank.figures is None or rank.exit_code):
                message = f"rank {rank.number} ended with code {rank.exit_code}"
                code = rank.exit_code
                raise LiveError(message, code if code in (BAD_INPUT, EMULATOR_GAP) else FAILURE)

    def _check_silence(self) -> None:
        silent_s = self._silent_s()
        running = {rank.number for rank in self._ranks.values() if rank.running}
        if silent_s > _NOTICE_S and running <= self._collecting():
            self._simulation.pass_by(running)
        if silent_s > self._timeout_s:
            silent = running or {thread.rank for thread in self._threads.values()}
            listed = ", ".join(map(str, sorted(silent)))
            problem = f"no message for {silent_s:.0f} s from ranks {listed} (--timeout)"
            if running:
                raise LiveError(problem, FAILURE)
            problem += f", of which a thread had its chance; {self._stuck}"
            raise LiveError(problem, IMPOSSIBLE_LAUNCHES)

    def _say_who_waits(self) -> None:
        """Say how ranks stand when for long none was let go on: one that runs holds up the rest,
        and says where it stands itself."""
        waited_s = time.monotonic() - self._turn_s
        if waited_s < self._patience_s or not (waits := self._simulation.waits()):
            return
        self._patience_s *= 2
        running = [rank.number for rank in self._ranks.values() if rank.running]
        lines = [f"ranks that run: {', '.join(map(str, running))}"] if running else []
        lines += waits[:_MOST_WAITS]
        if (more := len(waits) - _MOST_WAITS) > 0:
            lines.append(f"and {more} more")
        told = "".join(f"  {line}\n" for line in lines)
        sys.stderr.write(f"live: no rank has gone on for {waited_s:.0f} s:\n{told}")

    def _silent_s(self) -> float:
        """For how long no rank has sent or been told anything."""
        return 0.0 if self._received_s is None else time.monotonic() - self._received_s

    # Playing

    def _play(self) -> None:
        began_s = time.thread_time()
        try:
            self._turns += self._simulation.advance()
        except DeadlockError as error:
            if any(thread.collects is None for thread in self._threads.values()):
                # One that works may yet leave what others wait for.
                self._stuck = str(error)
                return
            hosts = self._simulation.hosts.values()
            taken = (
                sum(step.trains and step.end_ps is not None for step in host.steps)
                for host in hosts
            )
            if self._steps is not None and min(taken) == self._steps:
                # Those that have ended would have gone on to where the others wait for them.
                self._enough = True
                return
            raise LiveError(str(error), IMPOSSIBLE_LAUNCHES) from error
        except InputError as error:
            raise LiveError(str(error), BAD_INPUT) from error
        self._simulated_s += time.thread_time() - began_s

    def _give_turns(self) -> None:
        """Let threads go on that have what they collect, and ranks whose wait is over, earliest
        clocks first, while there are cores."""
        for connection, thread in self._threads.items():
            if thread.collects is not None and self._can_collect(thread.collects):
                self._answer(connection, Turn(0, collected=self._found(thread.collects.keys)))
                thread.collects = None
                self._simulation.go_on(thread.rank)
        # A host may be standing still for a thread that collects: it takes no core then.
        still = self._collecting()
        running = [rank for rank in self._ranks.values() if rank.running]
        free = self._cores - sum(rank.number not in still for rank in running)
        if free <= 0 and self._silent_s() > _CROWD_S:
            free = 1
        self._turns.sort(key=lambda release: (release.now_ps, release.rank))
        waiting = []
        for release in self._turns:
            rank = self._ranks[release.rank]
            if free > 0 and rank.connection is not None:
                rank.running = True
                collected = rank.changed or self._found(rank.collects)
                self._answer(rank.connection, Turn(release.now_ps, release.elapsed_ms, collected))
                rank.collects = rank.changed = ()
                free -= 1
            else:
                waiting.append(release)
        self._turns = waiting

    def _collecting(self) -> set[int]:
        """Ranks of which a thread waits for what others have not left yet."""
        return {each.rank for each in self._threads.values() if each.collects is not None}

    def _can_collect(self, asked: Collect) -> bool:
        return all(
            key in self._published or rank not in self._ranks
            for key, rank in zip(asked.keys, asked.ranks, strict=True)
        )

    def _change(self, change: Change) -> str:
        if made := change.made(self._published.get(change.key, "")):
            self._published[change.key] = made
        return made

    def _found(self, keys: tuple[str, ...]) -> tuple[str | None, ...]:
        return tuple(self._published.get(key) for key in keys)

    def _answer(self, connection: socket.socket, turn: Turn) -> None:
        # One that has gone is noticed when its process ends.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(turn_frame(turn))
        self._received_s = self._turn_s = time.monotonic()
        self._patience_s = WAIT_S


class _Lines:
    """What a rank prints, line by line."""

    def __init__(self, rank: int, show: Callable[[int, str], None]) -> None:
        self._rank = rank
        self._show = show
        self._rest = b""

    def take(self, connection: socket.socket) -> None:
        """Show the lines that are whole by now; when no more will come, what is left."""
        data = connection.recv(_READ_BYTES)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data and self._rest:
            lines.append(self._rest)
        for line in lines:
            self._show(self._rank, line.decode(errors="replace"))
        if not data:
            raise EOFError
