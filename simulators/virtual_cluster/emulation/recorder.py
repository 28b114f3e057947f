"""Turns what the emulated rank does into events, in order, with host time and phases between."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path

# Live mode replaces the clocks of ``time``; this one stays real.
from time import thread_time_ns as _thread_time_ns
from types import CodeType, FrameType
from typing import Any

from trainscout.simulators.virtual_cluster.traces import events

from .gaps import gap_left
from .sink import Sink
from .unknown_values import Read, Reads, Unknown

_NONE = Read(0, 0, None, None)
_OWN = str(Path(__file__).parent) + os.sep


class Sites:
    """Numbers for places in source code; each is announced once.

    The place is the innermost Python frame outside torch and the emulator. Backward of built-in
    operations runs without a Python frame and has none.
    """

    def __init__(self, skipped: tuple[str, ...], announce: Callable[[events.Site], None]) -> None:
        self._skipped = (_OWN, "<frozen", "<string>", *skipped)
        self._announce = announce
        self._foreign: dict[CodeType, bool] = {}
        self._numbers: dict[tuple[CodeType, int], int] = {}
        self._texts: list[str] = []

    def current(self) -> int | None:
        """The number of the place now executing, or None."""
        frame = sys._getframe(1)
        foreign = self._foreign
        while frame is not None:
            code = frame.f_code
            outside = foreign.get(code)
            if outside is None:
                outside = foreign[code] = not code.co_filename.startswith(self._skipped)
            if outside:
                key = (code, frame.f_lineno)
                number = self._numbers.get(key)
                if number is None:
                    number = self._numbers[key] = len(self._numbers)
                    name = code.co_qualname
                    self._texts.append(f"{code.co_filename}:{frame.f_lineno}")
                    self._announce(events.Site(number, code.co_filename, frame.f_lineno, name))
                return number
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def innermost(self, most: int) -> list[tuple[str, int]]:
        """Files and lines now executing outside torch and the emulator."""
        frame: FrameType | None = sys._getframe(1)
        found: list[tuple[str, int]] = []
        while frame is not None and len(found) < most:
            file = frame.f_code.co_filename
            if not file.startswith(self._skipped):
                found.append((file, frame.f_lineno))
            frame = frame.f_back
        return found

    def text(self, number: int | None) -> str:
        """A place as ``file:line``."""
        return "a place below Python" if number is None else self._texts[number]

    def restart(self) -> None:
        """Announce every place again: a new trace begins."""
        self._numbers.clear()
        self._texts.clear()


class EnoughStepsError(SystemExit):
    """Raised into a script that has run as many steps as were asked for; not an Exception, so that
    no handler of the script's takes it for a failure."""


class Recorder:
    """The one writer of events of a rank.

    Host time is the CPU time a thread spends between leaving the emulator and entering it again:
    what the script and its framework compute, and torch's own dispatch. It is a context: inside,
    the emulator works.
    """

    def __init__(
        self, sink: Sink, skipped: tuple[str, ...], graph_task: Callable[[], int]
    ) -> None:
        self.sink = sink
        # The autograd engine's task this thread works on, -1 outside of backward.
        self._graph_task = graph_task
        # A ``CompiledBackward``, which follows compiled regions; set while installing.
        self.backward: Any = None
        self.sites = Sites(skipped, self.emit)
        self.step = 0
        # The script is ended when it begins another step after so many; None: never. Told before.
        self.most_steps: int | None = None
        self.when_enough: Callable[[], object] = lambda: None
        self.phase = events.SETUP
        self.phases_entered = 0
        self.operations = 0
        self.collectives = 0
        self.violation_texts: list[tuple[str, str, str]] = []
        # Values nobody could know.
        self.inventions: Reads = {}
        # As these, values that were assumed for those of data, as of a choice.
        self.assumptions: Reads = {}
        # Gaps of the emulator, by place, which the script may have swallowed.
        self.gaps: Counter[tuple[int | None, str]] = Counter()
        # GPUs on which something was made since the first step began.
        self.devices: set[int | None] = set()
        # Data loaders that gave no batch, by place: what they were made of.
        self.empty_loaders: dict[int | None, str] = {}
        # Modules that the script itself calls: the models, seen from outside.
        self.modules: weakref.WeakSet[Any] = weakref.WeakSet()
        self._gap_ns = 0
        # Of the host's memory, read and written since the last event.
        self.host_bytes = 0
        # Shorter gaps are carried over to the next event.
        self.shortest_gap_ns: float = 1000
        self._left = threading.local()
        # The thread that last began a forward pass; before, that of the first update.
        self._host: int | None = None
        self._optimizer_steps = 0
        # The script was ended, or is to end, because it has run all steps that were asked for.
        self.has_enough = False
        self._flagged: set[tuple[str, int | None]] = set()

    def restart(self, sink: Sink) -> None:
        """A new trace begins: numbers, phases and steps start over."""
        self.sites.restart()
        self.sink = sink
        self.step, self.phase = 0, events.SETUP
        self.operations = self.collectives = 0
        self._gap_ns = self.host_bytes = self._optimizer_steps = 0
        self._flagged.clear()
        self.violation_texts.clear()
        self.inventions.clear()
        self.assumptions.clear()
        self.gaps.clear()
        self.empty_loaders.clear()
        self.modules.clear()
        self.leave()

    def enter(self) -> None:
        """The emulator begins to work: what passed on this thread since was the script's."""
        if self.is_beside():
            return
        left = getattr(self._left, "ns", None)
        if left is not None:
            self._gap_ns += _thread_time_ns() - left
        if self._graph_task() != -1:
            if self.phase != events.BACKWARD:
                self.enter_phase(events.BACKWARD)
        elif self.phase == events.BACKWARD:
            if self.backward is not None:
                self.backward.close()
            self.enter_phase(events.OTHER)

    def is_beside(self) -> bool:
        """Whether this is a thread that the script started beside the one that trains, as to write
        a checkpoint: what it does takes none of the host's time."""
        if self._host in (None, threading.get_ident()) or self._graph_task() != -1:
            return False
        # Those of torch's autograd, which Python knows as dummies, work while the host waits.
        return not isinstance(threading.current_thread(), threading._DummyThread)

    def leave(self) -> None:
        """Control returns to the script."""
        self._left.ns = _thread_time_ns()

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self.failed(error)
        self.leave()

    def failed(self, error: BaseException) -> None:
        """An exception leaves the emulator: if it is a gap, the script may swallow it."""
        if gap := gap_left(error):
            self.gaps[self.sites.current(), gap] += 1

    def launching(self) -> None:
        """The device is about to get something to do: is it part of a compiled backward?"""
        if self.backward is not None and self._graph_task() != -1:
            self.backward.follow()

    def emit(self, event: events.Event) -> None:
        """Hand an event on, after the host time before it."""
        if isinstance(event, events.Synchronise) and self.is_beside():
            return
        if self._gap_ns >= self.shortest_gap_ns:
            gap_s, self._gap_ns = self._gap_ns * 1e-9, 0
            self.sink.emit(events.HostGap(gap_s))
        if self.host_bytes:
            moved, self.host_bytes = self.host_bytes, 0
            self.sink.emit(events.HostWork(moved))
        self.sink.emit(event)

    def enter_phase(self, phase: str) -> None:
        """What follows belongs to ``phase``; a forward after an optimizer step is a new step.

        Raises:
            EnoughStepsError: instead of a step that nobody asked for.
        """
        if phase == self.phase:
            return
        if phase == events.FORWARD and self._optimizer_steps:
            self.next_step_begins()
            self.step += 1
            self._optimizer_steps = 0
        self.phase = phase
        self.phases_entered += 1
        self.emit(events.Phase(phase, self.step))

    def next_step_begins(self) -> None:
        """A forward pass begins, or, in a pipeline, the transfer that it waits for.

        Raises:
            EnoughStepsError: nobody asked for another step.
        """
        if self._optimizer_steps and self.finished_steps == self.most_steps:
            self.enough()

    def enough(self) -> None:
        """End the script: what was asked for has been run.

        Raises:
            EnoughStepsError: always.
        """
        self.has_enough = True
        self.when_enough()
        raise EnoughStepsError

    def forward_begins(self) -> None:
        """A module is called from outside of any."""
        if self._graph_task() == -1:
            self._host = threading.get_ident()
            if self.backward is not None:
                self.backward.close()
            self.enter_phase(events.FORWARD)

    def optimizer_begins(self) -> None:
        """An optimizer's step begins."""
        if self._host is None and self._graph_task() == -1:
            self._host = threading.get_ident()
        if self.backward is not None:
            self.backward.close()
            self.backward.clear()
        self.enter_phase(events.OPTIMIZER)

    def optimizer_ended(self) -> None:
        """An optimizer's step is over."""
        self._optimizer_steps += 1
        self.enter_phase(events.OTHER)

    def updated_by_hand(self) -> None:
        """Parameters are written without an optimizer of torch's: until the next forward pass."""
        self.optimizer_begins()
        self._optimizer_steps += 1

    def place(self) -> tuple[int, str, int]:
        """Where in training this is."""
        return self.step, self.phase, self._optimizer_steps

    def return_to(self, place: tuple[int, str, int]) -> None:
        """What came since ``place`` was only captured."""
        self.step, self.phase, self._optimizer_steps = place

    @property
    def is_updated(self) -> bool:
        """Between an optimizer's step and what the thread that trains does next."""
        return self.phase == events.OTHER and self._optimizer_steps > 0 and not self.is_beside()

    @property
    def finished_steps(self) -> int:
        """Steps whose optimizer has run."""
        return self.step + (1 if self._optimizer_steps else 0)

    @property
    def violations(self) -> int:
        """How many uses were flagged."""
        return len(self.violation_texts)

    def script_cpu_s(self) -> float:
        """CPU seconds of the calling thread's script that no ``HostGap`` has told yet."""
        left = getattr(self._left, "ns", None)
        since_ns = 0 if left is None else _thread_time_ns() - left
        return (self._gap_ns + since_ns) * 1e-9

    def violation(self, kind: str, message: str) -> None:
        """Note a use that a GPU would punish, once per kind and place."""
        site = self.sites.current()
        if (kind, site) not in self._flagged:
            self._flagged.add((kind, site))
            where = self.sites.text(site)
            self.violation_texts.append((kind, message, where))
            self.emit(events.Violation(kind, message, site))

    def invented(self, operation: str, value: object, hint: str | None) -> None:
        """Note that the script went on with a value that is a documented default."""
        self._note(self.inventions, operation, value, hint)

    def assumed(self, operation: str, value: object, hint: str | None) -> None:
        """Note that the script went on with what data are expected to give."""
        self._note(self.assumptions, operation, value, hint)

    def unknown_values(self) -> list[Unknown]:
        """All values so far that nobody knows, assumed or invented."""
        # Taken at once: a watchdog asks while the script reads on.
        kinds = [(True, tuple(self.assumptions.items())), (False, tuple(self.inventions.items()))]
        return [
            Unknown(
                operation,
                read.times,
                str(read.value)[:40],
                self.sites.text(site),
                read.hint or "",
                expected,
                read.steers,
                read.is_set_up,
            )
            for expected, reads in kinds
            for (operation, site), read in reads
        ]

    def _note(self, reads: Reads, operation: str, value: object, hint: str | None) -> None:
        place = (operation, self.sites.current())
        before = reads.get(place, _NONE)
        at_setup = before.at_setup + (self.phase == events.SETUP)
        reads[place] = Read(before.times + 1, at_setup, value, hint)
