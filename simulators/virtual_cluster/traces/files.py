"""Traces in files: one rank a file, ``DIR/rank_00037.trace.gz``.

A file is gzip over lines of ASCII: the header, then one event a line (``codec.py``). The same
header and events give the same bytes. Files come from elsewhere too, so they are read strictly and
within limits, and nothing in them is ever executed.
"""

from __future__ import annotations

import gzip
import itertools
import re
import threading
import zlib
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from trainscout.simulators.predictor.io.output import replacing_bytes, unwritable
from trainscout.simulators.predictor.question.errors import InputError

from .codec import MalformedError, decode_event, decode_header, encode_event, encode_header
from .events import Event, Header, Trace

FIELD = "trace"
# The compressor costs a tenth of the encoding, and traces shrink to a tenth.
COMPRESSION_LEVEL = 6
WRITE_LINES = 1024
_NAME = re.compile(r"rank_(\d{5,})\.trace\.gz")


@dataclass(frozen=True)
class Limits:
    """How much a file may hold, so that a small one cannot fill the memory."""

    line_bytes: int = 64 << 20
    events: int = 100_000_000
    text_bytes: int = 64 << 30


LIMITS = Limits()


def trace_path(directory: Path, rank: int) -> Path:
    """Where a directory of traces holds that of ``rank``."""
    return directory / f"rank_{rank:05d}.trace.gz"


class TraceWriter:
    """Writes a rank's trace as its events come.

    The file appears under its name when closed; until then, and when the block it is used in
    fails, there is none (or the old one). Threads may write: events stay whole, in the order of
    the calls."""

    def __init__(self, path: Path, header: Header) -> None:
        self._path = path
        self._lines = [encode_header(header)]
        self._lock = threading.Lock()
        self._compress = zlib.compressobj(COMPRESSION_LEVEL, wbits=16 + zlib.MAX_WBITS)
        self._place = ExitStack()
        try:
            self._file = self._place.enter_context(replacing_bytes(path))
        except OSError as error:
            raise unwritable(FIELD, path, error) from error

    def write(self, event: Event) -> None:
        """Append an event.

        Raises:
            TypeError, ValueError: for what no file holds (``encode_event``).
            InputError: when the file cannot be written.
        """
        line = encode_event(event)
        with self._lock:
            self._lines.append(line)
            if len(self._lines) >= WRITE_LINES:
                self._flush()

    def close(self) -> None:
        """Finish the file and give it its name."""
        try:
            with self._lock:
                self._flush()
                self._file.write(self._compress.flush())
        except BaseException as error:
            self.abandon(error)
            raise
        try:
            self._place.close()
        except OSError as error:
            raise unwritable(FIELD, self._path, error) from error

    def abandon(self, error: BaseException | None = None) -> None:
        """Leave no file."""
        error = error or RuntimeError("the trace was abandoned")
        try:
            self._place.__exit__(type(error), error, error.__traceback__)
        except BaseException as raised:
            if raised is not error:
                raise

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon(error)

    def _flush(self) -> None:
        text = "\n".join(self._lines) + "\n" if self._lines else ""
        self._lines.clear()
        try:
            self._file.write(self._compress.compress(text.encode("ascii")))
        except OSError as error:
            raise unwritable(FIELD, self._path, error) from error


class TraceReader:
    """Reads a rank's trace event by event: ``header`` at once, the events by iterating, once.

    Raises:
        InputError: naming file and line, for a file that is missing, cut short, over the
            ``limits`` or not what ``codec.py`` says.
    """

    def __init__(self, path: Path, limits: Limits = LIMITS) -> None:
        self._path = path
        self._limits = limits
        self._lines = self._checked_lines()
        try:
            self.header = decode_header(next(self._lines, ""))
        except MalformedError as error:
            raise self._bad(1, str(error)) from None

    def __iter__(self) -> Iterator[Event]:
        for number, line in enumerate(self._lines, start=2):
            if number - 1 > self._limits.events:
                raise self._bad(number, f"has more than {self._limits.events} events")
            try:
                yield decode_event(line)
            except MalformedError as error:
                raise self._bad(number, str(error)) from None

    def close(self) -> None:
        """Close the file before its end was read."""
        self._lines.close()

    def __enter__(self) -> TraceReader:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _bad(self, line: int, problem: str) -> InputError:
        return InputError(FIELD, f"{self._path}:{line}", problem)

    def _checked_lines(self) -> Generator[str, None, None]:
        longest, left = self._limits.line_bytes, self._limits.text_bytes
        try:
            with gzip.open(self._path, "rt", encoding="ascii", newline="\n") as file:
                for number in itertools.count(1):
                    line = file.readline(longest + 1)
                    left -= len(line)
                    if left < 0:
                        problem = f"holds more than {self._limits.text_bytes} bytes of text"
                        raise InputError(FIELD, self._path, problem)
                    if line[-1:] == "\n":
                        yield line[:-1]
                    elif len(line) > longest:
                        raise self._bad(number, f"is longer than {longest} bytes")
                    elif line:
                        raise self._bad(number, "does not end: the file was cut short")
                    else:
                        return
        except EOFError:
            raise InputError(FIELD, self._path, "was cut short") from None
        except UnicodeDecodeError:
            raise InputError(FIELD, self._path, "is not ASCII") from None
        except (gzip.BadGzipFile, zlib.error):
            raise InputError(FIELD, self._path, "is not gzip, or damaged") from None
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
            raise InputError(FIELD, self._path, problem) from error


def write_trace(path: Path, trace: Trace) -> None:
    """Write a whole trace."""
    with TraceWriter(path, trace.header) as writer:
        for event in trace.events:
            writer.write(event)


def read_trace(path: Path, limits: Limits = LIMITS) -> Trace:
    """A whole trace."""
    with TraceReader(path, limits) as reader:
        return Trace(reader.header, tuple(reader))


def find_traces(directory: Path) -> dict[int, Path]:
    """The traces of a directory by rank, in order of rank. Other files are passed over.

    Raises:
        InputError: when it is no directory or holds no trace.
    """
    if not directory.is_dir():
        raise InputError(FIELD, directory, "is no directory")
    found = {}
    for path in directory.iterdir():
        match = _NAME.fullmatch(path.name)
        if match is not None:
            found[int(match.group(1))] = path
    if not found:
        raise InputError(FIELD, directory, "holds no trace", "rank_00000.trace.gz and the like")
    return dict(sorted(found.items()))


def read_directory(directory: Path) -> tuple[Trace, ...]:
    """All traces of a directory, which must be of one job, in order of rank; of one without any,
    its Chakra execution traces (``*.et``); of a file, the one that it holds.

    Raises:
        InputError: as ``TraceReader`` and ``find_traces``, for a file that holds another rank than
            it is named after, and for ranks of another world; as ``read_chakra``.
    """
    if directory.is_file():
        return (read_trace(directory),)
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    if any(name.endswith(".et") for name in names) and not any(map(_NAME.fullmatch, names)):
        # Few need protobuf's messages.
        from .chakra.read import read_chakra

        return read_chakra(directory)
    traces: list[Trace] = []
    for rank, path in find_traces(directory).items():
        trace = read_trace(path)
        if trace.header.rank != rank:
            raise InputError(FIELD, path, f"holds the trace of rank {trace.header.rank}")
        if traces and trace.header.world_size != traces[0].header.world_size:
            sizes = f"{trace.header.world_size} ranks, others of {traces[0].header.world_size}"
            raise InputError(FIELD, path, f"is of a job of {sizes}")
        traces.append(trace)
    return tuple(traces)
