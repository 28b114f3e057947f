"""Traces of ranks for Perfetto: a process a rank, a thread a stream or communicator.

Without times a trace is shown by sequence: every event takes a microsecond, in the order the host
issued them. With the times of a replay, device work is where it ran, and the host where it was.
Arrows join each rendezvous: a collective's ranks, a send and its receive. Counters show the
memory that storages hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainscout.simulators.predictor.question.errors import InputError

from . import events
from .chrome import ChromeTrace, chrome_file
from .codec import encode_argument
from .collate.communication import Communication, communication, ranks_text, site_text
from .collate.matching import match
from .fused import Held

Floats = npt.NDArray[np.float64]
# What an event without times takes, and the grid that sequences are shown on.
SLOT_S = 1e-6
HOST_THREAD, PHASE_THREAD, RANGE_THREAD, FIRST_STREAM_THREAD = 0, 1, 2, 10
FIRST_COMMUNICATOR_THREAD = 1000
STEP_WORDS = " of step "
MEMORY_COUNTER = "device memory (bytes)"
MAX_ARGUMENTS = 8


@dataclass(frozen=True)
class EventTimes:
    """When each event of a trace was, in seconds; NaN for what was not played.

    Device work (operations, collectives, sends and receives): when it ran. Everything else: when
    the host came to it and went on.
    """

    start_s: Floats
    end_s: Floats


@dataclass(frozen=True)
class Counter:
    """A value over time: ``values`` hold from ``time_s`` on (equal lengths; NaN is left out)."""

    name: str
    time_s: Floats
    values: npt.NDArray[np.int64]


def write_perfetto(
    path: Path,
    traces: Sequence[events.Trace],
    times: Mapping[int, EventTimes] | None = None,
    option: str = "output",
    counters: Mapping[int, Sequence[Counter]] | None = None,
) -> None:
    """Write ``traces`` as Chrome JSON, compressed when ``path`` ends in ``.gz``.

    ``times`` and further ``counters``, by rank, come from a replay; without times events are shown
    by sequence.

    Raises:
        InputError: when ``path`` (named as ``option``) cannot be written, for times that are not
            those of the trace's events, and as ``communication``.
    """
    communications = [communication(trace) for trace in traces]
    timed = {trace.header.rank: _times(trace, times) for trace in traces}
    with chrome_file(option, path) as chrome:
        for trace, one in zip(traces, communications, strict=True):
            _Rank(chrome, trace, one, timed[trace.header.rank]).write()
            for counter in (counters or {}).get(trace.header.rank, ()):
                at_s, values = counter.time_s.tolist(), counter.values.tolist()
                chrome.counter_over_time(counter.name, trace.header.rank, at_s, values)
        _write_arrows(chrome, communications, timed)


def _times(trace: events.Trace, times: Mapping[int, EventTimes] | None) -> EventTimes:
    rank, count = trace.header.rank, len(trace.events)
    if times is None:
        slots = np.arange(count + 1, dtype=np.float64)
        slots *= SLOT_S
        return EventTimes(slots[:-1], slots[1:])
    if rank not in times or not (times[rank].start_s.shape == times[rank].end_s.shape == (count,)):
        raise InputError("times", f"rank {rank}", f"are not those of its {count} events")
    return times[rank]


def _communicator_threads(one: Communication) -> dict[str, int]:
    """Thread numbers by the rank's name of the communicator."""
    used = dict.fromkeys(launch.event.group for launch in one.launches)
    return {name: FIRST_COMMUNICATOR_THREAD + i for i, name in enumerate(used)}


class _Rank:
    """Writes one rank."""

    def __init__(
        self, chrome: ChromeTrace, trace: events.Trace, one: Communication, times: EventTimes
    ) -> None:
        self._chrome = chrome
        self._trace = trace
        self._rank = trace.header.rank
        self._communication = one
        self._threads = _communicator_threads(one)
        self._starts = times.start_s.tolist()
        self._ends = times.end_s.tolist()
        self._sites = {event.number: event for event in trace.events if type(event) is events.Site}

    def write(self) -> None:
        self._name_threads()
        for index, event in enumerate(self._trace.events):
            shown = self._shown(event)
            if shown is not None and math.isfinite(self._starts[index]):
                thread, name, args = shown
                start, end = self._starts[index], self._ends[index]
                self._chrome.slice(name, self._rank, thread, start, end, args)
        for name, thread, start, end in self._spans():
            self._chrome.slice(name, self._rank, thread, start, end)
        self._write_memory()

    def _name_threads(self) -> None:
        chrome, rank = self._chrome, self._rank
        chrome.process(rank, f"rank {rank}")
        chrome.thread(rank, HOST_THREAD, "host waits")
        chrome.thread(rank, PHASE_THREAD, "phases")
        chrome.thread(rank, RANGE_THREAD, "ranges")
        streams = {event.stream for event in self._trace.events if type(event) is events.Op}
        for stream in sorted(streams):
            chrome.thread(rank, FIRST_STREAM_THREAD + stream, f"stream {stream}")
        for name, thread in self._threads.items():
            communicator = self._communication.communicators[name]
            ranks = ranks_text(communicator.ranks)
            chrome.thread(rank, thread, f"{communicator.description} {ranks}")

    def _shown(self, event: events.Event) -> tuple[int, str, dict[str, object]] | None:
        """Thread, name and arguments of an event that is shown as a slice."""
        if type(event) is events.Op:
            inputs = [encode_argument(argument) for argument in event.inputs[:MAX_ARGUMENTS]]
            outputs = [encode_argument(tensor) for tensor in event.outputs[:MAX_ARGUMENTS]]
            args = {"inputs": inputs, "outputs": outputs, **self._at(event.site)}
            return FIRST_STREAM_THREAD + event.stream, event.name, args
        if type(event) is events.Collective:
            args = {
                "number": event.sequence,
                "bytes_in": event.bytes_in,
                "bytes_out": event.bytes_out,
                "dtype": event.dtype,
                **self._at(event.site),
            }
            return self._threads[event.group], event.kind, args
        if type(event) is events.PointToPoint:
            args = {"number": event.sequence, "bytes": event.bytes, **self._at(event.site)}
            return self._threads[event.group], f"{event.kind} {event.peer}", args
        if type(event) is events.Synchronise:
            return HOST_THREAD, f"synchronise {event.scope}", self._at(event.site)
        if type(event) is events.ValueRead:
            args = {"value": str(event.value), "grade": event.grade, **self._at(event.site)}
            return HOST_THREAD, event.operation, args
        if type(event) is events.WorkWait and event.blocks_host:
            return HOST_THREAD, "wait for communication", {}
        return None

    def _at(self, number: int | None) -> dict[str, object]:
        site = site_text(self._sites, number)
        return {"site": site} if site else {}

    def _spans(self) -> Iterator[tuple[str, int, float, float]]:
        """Phases and named ranges, by the host's times at their ends."""
        phase: tuple[str, float] | None = None
        ranges: list[tuple[str, str, float]] = []
        now = 0.0
        for index, event in enumerate(self._trace.events):
            if type(event) in (events.Op, events.Collective, events.PointToPoint):
                # On the device, and later than the host.
                continue
            if math.isfinite(self._starts[index]):
                now = max(now, self._starts[index])
            if type(event) is events.Phase:
                if phase is not None:
                    yield phase[0], PHASE_THREAD, phase[1], now
                phase = f"{event.phase}{STEP_WORDS}{event.step}", now
            elif type(event) is events.Begin:
                ranges.append((event.kind, event.name, now))
            elif type(event) is events.End:
                open_ones = [i for i, each in enumerate(ranges) if each[0] == event.kind]
                if open_ones:
                    kind, name, start = ranges.pop(open_ones[-1])
                    yield f"{kind} {name}", RANGE_THREAD, start, now
        if phase is not None:
            yield phase[0], PHASE_THREAD, phase[1], now

    def _write_memory(self) -> None:
        held = Held()
        for event, at_s in zip(self._trace.events, self._starts, strict=True):
            if held.follow(event) and math.isfinite(at_s):
                self._chrome.counter(MEMORY_COUNTER, self._rank, at_s, held.total_bytes)


def _write_arrows(
    chrome: ChromeTrace, communications: Iterable[Communication], timed: Mapping[int, EventTimes]
) -> None:
    communications = list(communications)
    threads = {one.rank: _communicator_threads(one) for one in communications}
    matching = match(communications)
    for number, rendezvous in enumerate((*matching.collectives, *matching.transfers)):
        ends = []
        for launch in rendezvous.launches:
            times = timed[launch.rank]
            middle = (times.start_s[launch.index] + times.end_s[launch.index]) / 2
            if math.isfinite(middle):
                ends.append((launch.rank, threads[launch.rank][launch.event.group], float(middle)))
        if len(ends) > 1:
            chrome.arrow(number, ends)
