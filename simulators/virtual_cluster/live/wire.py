"""Messages between ranks and the simulator over a socket: frames of text, strictly read.

A frame is a letter, a length and as much UTF-8. ``E``: events, one line each as in trace files.
``M``: a rank's other messages (sleep, elapsed, publish, collect, hello, finish) as a JSON array.
``R``: the release of a rank that waits, ``[clock in ps, elapsed ms or null, what it collected]``.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainscout.simulators.virtual_cluster.live.messages import AskElapsed, Collect, Publish, Sleep
from trainscout.simulators.virtual_cluster.live.simulation import Release
from trainscout.simulators.virtual_cluster.traces.codec import (
    MalformedError,
    decode_event,
    encode_event,
)
from trainscout.simulators.virtual_cluster.traces.events import Event

EVENTS, MESSAGE, RELEASE = b"E", b"M", b"R"
_HEAD = struct.Struct("<cI")
# A batch of events is a few hundred lines; nothing honest comes near this.
MOST_BYTES = 64 * 2**20
# A thousand years; the clock counts picoseconds.
_MOST_S = 3.2e10


@dataclass(frozen=True)
class Hello:
    """The first message on a connection: whose it is, and whether for its events or its output."""

    rank: int
    purpose: str


@dataclass(frozen=True)
class Invention:
    """A value the script went on with that nobody can know without computing."""

    operation: str
    count: int
    value: str
    where: str


@dataclass(frozen=True)
class Figures:
    """What a rank's process took and found, sent when its script has ended."""

    code: int
    cpu_s: float
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    resident_bytes: int
    own_bytes: int
    violations: int
    inventions: tuple[Invention, ...] = field(default=())


Sent = Sleep | AskElapsed | Publish | Collect | Hello | Figures


def frame(kind: bytes, text: str) -> bytes:
    """One frame's bytes."""
    body = text.encode()
    return _HEAD.pack(kind, len(body)) + body


def events_frame(events: Sequence[Event]) -> bytes:
    return frame(EVENTS, "\n".join(map(encode_event, events)))


def message_frame(message: Sent) -> bytes:
    if isinstance(message, Sleep):
        content: list[Any] = ["sleep", message.seconds]
    elif isinstance(message, AskElapsed):
        content = ["elapsed", message.start, message.end]
    elif isinstance(message, Publish):
        content = ["publish", message.key, message.payload]
    elif isinstance(message, Collect):
        content = ["collect", message.keys, message.ranks]
    elif isinstance(message, Hello):
        content = ["hello", message.rank, message.purpose]
    else:
        content = ["finish", asdict(message)]
    return frame(MESSAGE, json.dumps(content, allow_nan=False))


def release_frame(release: Release, collected: Sequence[str | None] = ()) -> bytes:
    return frame(RELEASE, json.dumps([release.now_ps, release.elapsed_ms, list(collected)]))


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    @property
    def rest(self) -> bytes:
        """What has come after the last whole frame."""
        return bytes(self._bytes)

    def take(self, data: bytes) -> Iterator[tuple[bytes, str]]:
        """Frames that are whole with ``data``.

        Raises:
            MalformedError: for what is no frame.
        """
        self._bytes += data
        while len(self._bytes) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._bytes)
            if kind not in (EVENTS, MESSAGE, RELEASE) or length > MOST_BYTES:
                raise MalformedError(f"a frame of kind {kind!r} and {length} bytes")
            end = _HEAD.size + length
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[_HEAD.size : end])
            del self._bytes[:end]
            try:
                yield kind, body.decode()
            except UnicodeDecodeError as error:
                raise MalformedError("a frame that is no text") from error


def read_frame(connection: socket.socket) -> tuple[bytes, str]:
    """The next frame of a connection on which only one can be under way.

    Raises:
        EOFError: when the other side has gone.
        MalformedError: for what is no frame.
    """
    frames = Frames()
    while True:
        data = connection.recv(65536)
        if not data:
            raise EOFError("the simulator has gone")
        for found in frames.take(data):
            return found


def read_release(text: str) -> tuple[int, float | None, list[str | None]]:
    """Clock in ps, elapsed ms and what was collected, of a release.

    Raises:
        MalformedError: for anything else.
    """
    content = _array(text)
    match content:
        case [int(now_ps), None | float() as elapsed_ms, list(collected)] if all(
            each is None or isinstance(each, str) for each in collected
        ):
            return now_ps, elapsed_ms, collected
    raise MalformedError(f"no release: {text[:80]}")


def read_events(text: str) -> list[Event]:
    """Events of an ``E`` frame.

    Raises:
        MalformedError: for a line that is no event.
    """
    return [decode_event(line) for line in text.split("\n")]


def read_message(text: str) -> Sent:
    """The message of an ``M`` frame; ``Figures`` stand for the finish.

    Raises:
        MalformedError: for anything else.
    """
    content = _array(text)
    match content:
        case ["sleep", int() | float() as seconds] if 0 <= seconds < _MOST_S:
            return Sleep(float(seconds))
        case ["elapsed", int(start), int(end)]:
            return AskElapsed(start, end)
        case ["publish", str(key), str(payload)]:
            return Publish(key, payload)
        case ["collect", list(keys), list(ranks)] if (
            len(keys) == len(ranks)
            and all(isinstance(key, str) for key in keys)
            and all(isinstance(rank, int) for rank in ranks)
        ):
            return Collect(tuple(keys), tuple(ranks))
        case ["hello", int(rank), "events" | "output" as purpose]:
            return Hello(rank, purpose)
        case ["finish", dict(fields)]:
            return _figures(fields)
    raise MalformedError(f"no message of a rank: {text[:80]}")


def _figures(fields: dict[str, Any]) -> Figures:
    try:
        inventions = tuple(Invention(**each) for each in fields.pop("inventions"))
        figures = Figures(**fields, inventions=inventions)
    except (TypeError, KeyError) as error:
        raise MalformedError(f"no figures of a rank: {error}") from error
    numbers = [value for name, value in asdict(figures).items() if name != "inventions"]
    if not all(isinstance(value, int | float) and 0 <= value < 1e30 for value in numbers[1:]):
        raise MalformedError("figures of a rank that are no numbers")
    return figures


def _array(text: str) -> list[Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"no JSON: {text[:80]}") from error
    if not isinstance(content, list):
        raise MalformedError(f"no array: {text[:80]}")
    return content
