"""Where a search's trials are kept: a journal file, or a database by URL; through Optuna."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import random
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import optuna
from optuna.storages.journal import JournalFileBackend

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.redaction import root_cause

FIELD = "search.storage"
_PLACES = "a path, sqlite:///FILE or postgresql://..."

# SQLite is locked as a whole while somebody writes; this is how long others wait, in seconds.
_SQLITE_WAIT_S = 60
_CONNECT_S = 10
_TAIL_BYTES = 65536
_CREATE_ATTEMPTS = 10


def open_storage(location: str) -> Any:
    """The Optuna storage at ``location``: a path, or an SQLAlchemy URL.

    Raises:
        InputError: when it cannot be opened, or is something else.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        if "://" in location:
            return _database(location)
        path = Path(location)
        if path.exists():
            _refuse_what_is_no_journal(path)
        return optuna.storages.JournalStorage(Journal(location))
    except InputError:
        raise
    except OSError as error:
        raise InputError(FIELD, location, f"cannot be opened: {error}", _PLACES) from error
    except Exception as error:  # whatever a damaged file or a database makes a backend raise
        raise damaged(location, error) from error


def damaged(location: str, error: Exception) -> InputError:
    """What to say when something in the storage cannot be read."""
    if "://" in location or isinstance(error, OSError):
        return InputError(FIELD, location, f"cannot be used: {root_cause(error)}", _PLACES)
    return InputError(
        FIELD,
        location,
        f"is damaged or not a search store ({type(error).__name__}: {error})",
        "delete or move it and search again without resume",
    )


def file_of(location: str) -> Path | None:
    """The file that a location names; None for a database server's."""
    if location.startswith("sqlite:///"):
        return Path(location.removeprefix("sqlite:///"))
    return None if "://" in location else Path(location)


SYNC_S = 1.0
"""A disk takes milliseconds to say that a record is there, as long as a recipe takes to simulate:
it is asked once in so many seconds."""


class Journal(JournalFileBackend):  # type: ignore[misc]  # Optuna is not typed for us
    """A journal file that survives writers which are killed while they write.

    Optuna's own lock is a file that a killed process leaves behind, and its reader does not
    get past a torn line in the middle. Here the kernel holds the lock on the journal itself,
    and whoever writes next cuts a torn last line off.

    A record ends in a checksum of itself. One that a flipped bit or an editor has changed is left
    out, and its number is in ``damaged``: it costs one recipe, not the search.

    What is written outlives its process at once. A machine that dies may lose what came after the
    last time that the disk was waited for, which is ``SYNC_S`` ago at most while records come.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.damaged: set[int] = set()
        self._synced_s = -math.inf

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        offsets = self._log_number_offset
        with open(self._file_path, "rb") as journal:
            summed = _SUM.search(journal.readline()) is not None
            number = log_number_from if log_number_from in offsets else 0
            journal.seek(offsets[number])
            for line in journal:
                if not line.endswith(b"\n"):  # torn, or being written
                    return
                offsets[number + 1] = offsets[number] + len(line)
                if number >= log_number_from:
                    log = _record(line, summed)
                    if log is None:
                        self.damaged.add(number)
                    yield _NOTHING if log is None else log
                number += 1

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(map(_line, logs))
        with open(self._file_path, "rb+") as journal:
            _lock(journal)
            _cut_torn_line(journal)
            journal.write(lines.encode())
            journal.flush()
            if time.monotonic() - self._synced_s >= SYNC_S:
                os.fsync(journal.fileno())
                self._synced_s = time.monotonic()


_SUM = re.compile(rb',"sum":"([0-9a-f]{8})"}\n$')
# Of a study that there is not: Optuna passes it over, and counts it.
_NOTHING = {"op_code": 2, "worker_id": "", "study_id": -1, "user_attr": {"damaged": True}}


def _line(log: dict[str, Any]) -> str:
    body = json.dumps(log, separators=(",", ":"))
    return f'{body[:-1]},"sum":"{zlib.crc32(body.encode()):08x}"}}\n'


def _record(line: bytes, summed: bool) -> dict[str, Any] | None:
    """What a line holds, None if it is damaged; ``summed``: lines of this journal have sums (those
    of earlier versions had none)."""
    found = _SUM.search(line)
    body = line if found is None else line[: found.start()] + b"}"
    if summed if found is None else zlib.crc32(body) != int(found[1], 16):
        return None
    try:
        log = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return log if isinstance(log, dict) and "op_code" in log else None


def damaged_records(storage: Any) -> int:
    """How many records of a storage were left out because they are not what was written."""
    journal = getattr(storage, "_backend", None)
    return len(journal.damaged) if isinstance(journal, Journal) else 0


def _lock(file: BinaryIO) -> None:
    """Wait until no other process has the file locked; closing it unlocks."""
    # Windows has no such lock; there, one process at a time is for the user to keep.
    with contextlib.suppress(ImportError):
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_EX)


def _cut_torn_line(journal: BinaryIO) -> None:
    """Leave the file ending, and positioned, after its last whole line."""
    end = journal.seek(0, os.SEEK_END)
    keep = end
    while keep > 0:
        start = max(0, keep - _TAIL_BYTES)
        journal.seek(start)
        newline = journal.read(keep - start).rfind(b"\n")
        if newline >= 0:
            keep = start + newline + 1
            break
        keep = start
    if keep < end:
        journal.truncate(keep)
    journal.seek(keep)


def _refuse_what_is_no_journal(path: Path) -> None:
    with path.open("rb") as journal:
        first = journal.readline()
    # A writer may have been killed in the middle of the very first line.
    torn = not first.endswith(b"\n") and first[: len(_OPENING)] == _OPENING[: len(first)]
    if not torn and _record(first, summed=False) is None:
        raise ValueError("its first line is no journal entry")


_OPENING = b'{"op_code":'


def _database(url: str) -> Any:
    scheme, rest = url.split("://", 1)
    # SQLAlchemy takes the old psycopg2 where no driver is named.
    if scheme == "postgresql" and importlib.util.find_spec("psycopg2") is None:
        scheme = "postgresql+psycopg"
    arguments: dict[str, Any] = {"pool_pre_ping": True}
    if scheme.startswith("sqlite"):
        arguments["connect_args"] = {"timeout": _SQLITE_WAIT_S}
    elif scheme.startswith("postgresql"):
        arguments["connect_args"] = {"connect_timeout": _CONNECT_S}
    try:
        return _created(f"{scheme}://{rest}", arguments)
    except ImportError as error:
        raise InputError(
            FIELD,
            url,
            f"needs a database driver that is not installed ({root_cause(error)})",
            "pip install 'trainscout[postgres]' for PostgreSQL, or a path, or sqlite:///FILE",
        ) from error


def _created(url: str, engine_arguments: dict[str, Any]) -> Any:
    """The database, its tables created if need be; other processes may be creating them too."""
    for _ in range(_CREATE_ATTEMPTS):
        try:
            return optuna.storages.RDBStorage(url, engine_kwargs=engine_arguments)
        except Exception as error:
            if not any(word in str(error).lower() for word in ("exists", "unique", "locked")):
                raise
        time.sleep(random.uniform(0.1, 0.5))
    return optuna.storages.RDBStorage(url, engine_kwargs=engine_arguments)
