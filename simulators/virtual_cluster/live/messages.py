"""What a rank's process sends the simulator: a trace's events, and what only live mode has."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

from trainscout.simulators.virtual_cluster.emulation.unknown_values import Unknown
from trainscout.simulators.virtual_cluster.traces import codec, events


@dataclass(frozen=True)
class Sleep:
    """The script sleeps."""

    seconds: float


@dataclass(frozen=True)
class AskElapsed:
    """The script wants to know the milliseconds between two recorded events."""

    start: int
    end: int


@dataclass(frozen=True)
class Publish:
    """A small tensor or object for other ranks, as text, and the ``key`` they ask for it by."""

    key: str
    payload: str


@dataclass(frozen=True)
class Collect:
    """The script needs what each of ``ranks`` publishes under its key."""

    keys: tuple[str, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.ranks):
            raise codec.MalformedError(f"{len(self.keys)} keys of {len(self.ranks)} ranks")


@dataclass(frozen=True)
class Change:
    """A rank makes another text of what lies under ``key``, with nobody in between, and goes on
    with it: ``how`` is add (numbers), append, or set where it is ``expected`` ("": nothing)."""

    key: str
    how: str
    value: str
    expected: str = ""

    def made(self, before: str) -> str:
        """Of what lies there, "" for nothing; texts that are there begin with =.

        Raises:
            MalformedError: for a sum with what is no number.
        """
        if self.how == "append":
            return f"{before or '='}{self.value}"
        if self.how == "set":
            return f"={self.value}" if before.removeprefix("=") == self.expected else before
        try:
            return f"={int(before.removeprefix('=') or 0) + int(self.value)}"
        except ValueError as error:
            raise codec.MalformedError(f"{self.key!r} holds no number to add to") from error


@dataclass(frozen=True)
class Finish:
    """The script has ended."""


# What the simulation is fed with; what is published only passes through it.
Message = events.Event | Sleep | AskElapsed | Publish | Collect | Finish


def blocks(message: Message) -> bool:
    """Whether the host stands still until the simulator lets it go on."""
    if isinstance(message, events.WorkWait):
        return message.blocks_host
    return isinstance(
        message, events.Synchronise | events.ValueRead | Sleep | AskElapsed | Collect
    )


# Messages between ranks and the simulator over a socket: frames of lines, strictly read.
#
# A frame is a length and as much UTF-8: one message a line, as events are in trace files.

_HEAD = struct.Struct("<I")
# A batch of events is a few hundred lines; nothing honest comes near this.
MOST_BYTES = 64 * 2**20
# A thousand years; the clock counts picoseconds.
_MOST_S = 3.2e10


@dataclass(frozen=True)
class Hello:
    """The first message on a connection: whose it is, and whether for its events, its output, or
    what one more thread of it hands over and collects."""

    rank: int
    purpose: str


@dataclass(frozen=True)
class Figures:
    """What a rank's process took and found, sent when its script has ended."""

    code: int
    cpu_s: float
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    own_bytes: int
    violations: int


@dataclass(frozen=True)
class Turn:
    """The simulator's to a rank that waits: go on at this time; what was asked, and collected."""

    now_ps: int
    elapsed_ms: float | None = None
    collected: tuple[str | None, ...] = ()


Sent = events.Event | Sleep | AskElapsed | Publish | Collect | Change | Hello | Unknown | Figures


def _sleep_seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < _MOST_S:
        raise codec.MalformedError("is not so many seconds")
    return float(value)


OF_RANKS = codec.LineCodec(
    get_args(Sent),
    {
        **codec.EVENT_CHECKS,
        (Sleep, "seconds"): _sleep_seconds,
        (Change, "how"): codec.one_of(("add", "append", "set")),
        (Hello, "purpose"): codec.one_of(("events", "output", "thread")),
    },
)
OF_SIMULATOR = codec.LineCodec((Turn,), {})


def frame(messages: Iterable[Sent]) -> bytes:
    """A rank's messages as one frame's bytes."""
    return _framed("\n".join(map(OF_RANKS.encode, messages)))


def turn_frame(turn: Turn) -> bytes:
    """The simulator's."""
    return _framed(OF_SIMULATOR.encode(turn))


def connect(address: str, hello: Hello) -> socket.socket:
    """A connection to the simulator that has said hello."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(address)
    connection.sendall(frame([hello]))
    return connection


def _framed(text: str) -> bytes:
    body = text.encode()
    return _HEAD.pack(len(body)) + body


def receive(connection: socket.socket) -> str:
    """The text of the next frame.

    Raises:
        EOFError: when the other side has gone.
        MalformedError: for what is no frame.
    """
    (length,) = _HEAD.unpack(_bytes(connection, _HEAD.size))
    if length > MOST_BYTES:
        raise codec.MalformedError(f"a frame of {length} bytes")
    try:
        return _bytes(connection, length).decode()
    except UnicodeDecodeError as error:
        raise codec.MalformedError("a frame that is no text") from error


def _bytes(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            raise EOFError("the other side has gone")
        found += more
    return found


def read_messages(text: str) -> list[Any]:
    """What a rank says in a frame.

    Raises:
        MalformedError: for a line that is no message of a rank.
    """
    return [OF_RANKS.decode(line) for line in text.split("\n")]
