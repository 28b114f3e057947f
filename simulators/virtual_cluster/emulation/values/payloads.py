"""Small tensors that ranks traced one after the other send each other, by file.

Only the source of a broadcast knows what it sends, and only each member what it adds to a sum.
Its run writes that down, and runs of other ranks read it: traced in that order, they know it
exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import torch

from trainscout.simulators.predictor.question.errors import InputError

from . import plain
from .shadow import Grade, Known

# Flags, sizes and lists of them, up to the 5,056 bytes of a generator's state on the host, which
# says in which order data comes; data itself is not sent this way.
MOST_ELEMENTS = 5056

_DTYPES = {name: getattr(torch, name) for name in (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16",
    "float32", "float64",
)}  # fmt: skip


@dataclass(frozen=True)
class Message:
    """Which transfer it was: equal on both sides. ``peer`` is the receiving member's index where
    it is for one member only."""

    kind: str
    group: str
    sequence: int
    source: int
    peer: int | None = None


class Post(Protocol):
    """Takes small tensors to other ranks."""

    def send(self, message: Message, known: Known | None) -> None:
        """This rank gives what it knows of a tensor, None for nothing."""

    def collect(self, messages: Sequence[Message], ranks: Sequence[int]) -> list[Known | None]:
        """What each of ``ranks`` gave, None when nobody knows."""


class Payloads:
    """Writes ``DIR/payloads-<rank>.jsonl`` for this rank, reads those of all other ranks."""

    def __init__(self, directory: Path, rank: int) -> None:
        """Raises InputError for a place that is no directory or holds files of another kind."""
        self._own = directory / f"payloads-{rank:05d}.jsonl"
        if not directory.is_dir():
            raise InputError("payloads", directory, "is no directory", "an existing directory")
        self._received: dict[Message, Known] = {}
        for path in sorted(directory.glob("payloads-*.jsonl")):
            if path != self._own:
                self._received.update(_read(path))
        self._file: IO[str] | None = None

    def send(self, message: Message, known: Known | None) -> None:
        """Write down what this rank gives; what is too large is not."""
        line = None if known is None else written(message, known)
        if line is None:
            return
        if self._file is None:
            # Line by line, not whole: a live run's other ranks may read while this one runs.
            self._file = self._own.open("w", encoding="utf-8")
        self._file.write(line + "\n")
        self._file.flush()

    def collect(self, messages: Sequence[Message], ranks: Sequence[int]) -> list[Known | None]:
        """What was given, None if no run has written it."""
        return [self._received.get(message) for message in messages]

    def close(self) -> None:
        """Nothing is sent any more."""
        if self._file is not None:
            self._file.close()
            self._file = None


def written(message: Message, known: Known) -> str | None:
    """A message as a line, None when it is too large to be sent."""
    value = known.value
    name = str(value.dtype).removeprefix("torch.")
    if value.numel() > MOST_ELEMENTS or name not in _DTYPES:
        return None
    line = {
        **asdict(message),
        "dtype": name,
        "shape": list(value.shape),
        "values": [_plain(v) for v in value.reshape(-1).tolist()],
    }
    if known.grade is not Grade.EXACT:
        line["grade"] = known.grade.label
    return json.dumps(line)


def read_line(line: str) -> tuple[Message, Known]:
    """Back from ``written``.

    Raises:
        ValueError, TypeError, KeyError, RuntimeError: for what is no message.
    """
    entry = json.loads(line)
    values = [float(v) if isinstance(v, str) else v for v in entry["values"]]
    message = Message(
        str(entry["kind"]),
        str(entry["group"]),
        int(entry["sequence"]),
        int(entry["source"]),
        None if entry["peer"] is None else int(entry["peer"]),
    )
    made = plain.tensor(values, dtype=_DTYPES[entry["dtype"]])
    grade = Grade[str(entry.get("grade", "exact")).upper()]
    return message, Known(made.reshape(entry["shape"]), grade)


def _plain(value: Any) -> Any:
    # JSON knows no infinities.
    return value if not isinstance(value, float) or math.isfinite(value) else repr(value)


def _read(path: Path) -> Mapping[Message, Known]:
    found = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                message, made = read_line(line)
                found[message] = made
            except (ValueError, TypeError, KeyError, RuntimeError) as error:
                problem = f"holds no payload: {error}"
                raise InputError("payloads", f"{path}, line {number}", problem) from error
    return found
