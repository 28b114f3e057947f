"""Chrome trace events, which Perfetto and chrome://tracing open: JSON, written as it comes, and
read.

Times are microseconds, the unit of the format; a ``pid`` is a rank or stage, a ``tid`` a stream.
(Trace Event Format, the Chromium project; events X, M, C, s and f.)
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from trainscout.simulators.predictor.io.output import replacing, replacing_bytes, unwritable
from trainscout.simulators.predictor.question.errors import InputError

_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode
FLOW_CATEGORY = "communication"
# Perfetto counts flows of the older kind (s, f) from 0 in the numbers that those of the newer
# kind (bind_id) choose themselves: stay clear of them.
BOUND_IDS = 1 << 32
# Perfetto takes thread 0, and the thread numbered as its process, for the process's main thread:
# two threads of ours would become one. Ranks have smaller numbers than threads.
THREADS = 1_000_000
MAX_BYTES = 1 << 30


class ChromeTrace:
    """Writes events into ``stream``; ``finish`` makes it a whole file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._separator = '{"displayTimeUnit":"ms","traceEvents":[\n'

    def process(self, pid: int, name: str) -> None:
        """Name a process; processes are shown in order of their numbers."""
        self._label("process_name", pid, 0, {"name": name})
        self._label("process_sort_index", pid, 0, {"sort_index": pid})

    def thread(self, pid: int, tid: int, name: str) -> None:
        """Name a thread; threads are shown in order of their numbers."""
        self._label("thread_name", pid, tid, {"name": name})
        self._label("thread_sort_index", pid, tid, {"sort_index": tid})

    def slice(
        self,
        name: str,
        pid: int,
        tid: int,
        start_s: float,
        end_s: float,
        args: Mapping[str, object] | None = None,
        *,
        leads_to: int | None = None,
        led_by: int | None = None,
    ) -> None:
        """Something that took from ``start_s`` to ``end_s``.

        An arrow goes from the slice that ``leads_to`` a number to the one ``led_by`` it; these
        numbers are apart from those of ``arrow``.
        """
        # Both ends rounded, so that what follows at once does not overlap by the rounding.
        start, end = _nanoseconds(start_s), _nanoseconds(end_s)
        event: dict[str, object] = {
            "name": name,
            "ph": "X",
            "pid": pid,
            "tid": THREADS + tid,
            "ts": _in_microseconds(start),
            "dur": _in_microseconds(end - start),
        }
        if args:
            event["args"] = args
        if leads_to is not None:
            event |= {"bind_id": BOUND_IDS + leads_to, "flow_out": True}
        if led_by is not None:
            event |= {"bind_id": BOUND_IDS + led_by, "flow_in": True}
        self._write(event)

    def counter(self, name: str, pid: int, at_s: float, value: float) -> None:
        """The value from now on; ``name`` ends in a unit, in brackets."""
        # Perfetto calls a track by the counter's name and the series': together ours.
        counted, _, unit = name.rpartition(" ")
        event = {"name": counted, "ph": "C", "pid": pid, "ts": _microseconds(at_s)}
        self._write(event | {"args": {unit: value}})

    def counter_over_time(
        self, name: str, pid: int, at_s: Iterable[float], values: Iterable[float]
    ) -> None:
        """As ``counter``, for each of the times that is known."""
        for at, value in zip(at_s, values, strict=True):
            if math.isfinite(at):
                self.counter(name, pid, at, value)

    def arrow(self, number: int, ends: list[tuple[int, int, float]]) -> None:
        """An arrow from the first through all others of ``ends``: (pid, tid, a time within the
        slice that it begins or ends at). ``number`` distinguishes arrows."""
        phases = ["s"] + ["t"] * (len(ends) - 2) + ["f"]
        for phase, (pid, tid, at_s) in zip(phases, ends, strict=True):
            event = {
                "name": "rendezvous",
                "cat": FLOW_CATEGORY,
                "ph": phase,
                "id": number,
                "pid": pid,
                "tid": THREADS + tid,
                "ts": _microseconds(at_s),
            }
            # Bind to the slice around the time, not to the next one.
            self._write(event | {"bp": "e"} if phase == "f" else event)

    def finish(self) -> None:
        """End the file."""
        if self._separator != ",\n":
            self._stream.write(self._separator)
        self._stream.write("\n]}\n")

    def _label(self, kind: str, pid: int, tid: int, args: Mapping[str, object]) -> None:
        event = {"name": kind, "ph": "M", "pid": pid, "tid": THREADS + tid, "args": args}
        self._write(event)

    def _write(self, event: Mapping[str, object]) -> None:
        self._stream.write(self._separator)
        self._stream.write(_to_json(event))
        self._separator = ",\n"


@contextmanager
def chrome_file(option: str, path: Path) -> Iterator[ChromeTrace]:
    """A Chrome trace at ``path`` when the block ends well; compressed when it is named ``.gz``."""
    try:
        with _text_file(path) as stream:
            trace = ChromeTrace(stream)
            yield trace
            trace.finish()
    except OSError as error:
        raise unwritable(option, path, error) from error


@contextmanager
def _text_file(path: Path) -> Iterator[TextIO]:
    if path.suffix != ".gz":
        with replacing(path) as plain:
            yield plain
        return
    # Without name and time, so that equal traces are equal files.
    with (
        replacing_bytes(path) as file,
        gzip.GzipFile("", "wb", 6, fileobj=file, mtime=0) as compressed,
        io.TextIOWrapper(compressed, encoding="ascii", newline="") as text,
    ):
        yield text


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _in_microseconds(nanoseconds: int) -> float:
    """What a reader that multiplies by 1000 and drops the rest, as Perfetto does, makes whole."""
    microseconds = nanoseconds / 1000
    while int(microseconds * 1000) < nanoseconds:
        microseconds = math.nextafter(microseconds, math.inf)
    return microseconds


def _microseconds(seconds: float) -> float:
    return _in_microseconds(_nanoseconds(seconds))


def read_chrome(field: str, path: Path) -> dict[str, Any]:
    """The object of a Chrome trace, ``.json`` or ``.json.gz``; its ``traceEvents`` are a list.

    Raises:
        InputError: naming ``field``, when it cannot be read, holds more than ``MAX_BYTES``, or is
            no Chrome trace.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            text = _read_at_most(file)
    except OSError as error:
        raise InputError(field, path, f"cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error):
        raise InputError(field, path, "was cut short or damaged") from None
    if len(text) > MAX_BYTES:
        raise InputError(field, path, f"holds more than {MAX_BYTES} bytes")
    try:
        top = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(field, path, f"is not JSON: {error}") from None
    if type(top) is not dict or type(top.get("traceEvents")) is not list:
        raise InputError(field, path, "has no list of traceEvents")
    return top


def _read_at_most(file: io.BufferedIOBase) -> bytes:
    """Up to a byte more than ``MAX_BYTES``, in parts: asked for all at once, Python takes the
    memory for as much before it looks how much there is."""
    parts = []
    left = MAX_BYTES + 1
    while left > 0 and (part := file.read(min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def slices(top: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The complete events (``X``) of what ``read_chrome`` read."""
    return [
        event for event in top["traceEvents"] if type(event) is dict and event.get("ph") == "X"
    ]
