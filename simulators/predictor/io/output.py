"""What commands write: files that are whole or not there, and text that a reader may leave."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from trainscout.simulators.predictor.question.errors import InputError


def show_text(text: str) -> None:
    """Write on stdout. A reader that has left (``| head``) ends the output, not the program."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_texts(directory: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files by name below an existing directory, each whole; where they are.

    Raises:
        OSError: when one cannot be written.
    """
    paths = [directory / name for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    return paths


def fingerprint(content: Any) -> str:
    """A short hash of something JSON-ready: equal content, equal hash."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def json_text(value: Any, indent: int = 2) -> str:
    """A value as JSON, which knows neither NaN nor infinities."""
    return json.dumps(value, indent=indent, allow_nan=False) + "\n"


def check_output(option: str, path: Path | None, others: Sequence[Path | None] = ()) -> None:
    """Refuse a place for results that cannot be written, before any work is done.

    ``others`` are the files that the command reads, and what else it writes.

    Raises:
        InputError: naming the option, for a folder, a place that cannot be written, or one of
            ``others`` under any name.
    """
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(option, path, "cannot be written", "a file in an existing place")
    if _is_stream(path):
        if not os.access(path, os.W_OK):
            raise InputError(option, path, "cannot be written: Permission denied")
        return
    for other in others:
        if other is not None and _same(path, other):
            problem = f"is the same file as {other}, which would be lost"
            raise InputError(option, path, problem, "another file")
    try:
        tempfile.TemporaryFile(dir=_target(path).parent).close()
    except OSError as error:
        raise InputError(option, path, f"cannot be written: {error.strerror}") from error


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """A file to write text into, which takes the place of ``path`` when the block ends well.

    A reader sees the old file or the new one, never a part; a link goes on to name its target.
    What is no regular file (a pipe, a device) cannot be replaced: it is written to.

    Raises:
        OSError: when it cannot be written.
    """
    with replacing_bytes(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        try:
            yield text
            text.flush()
        finally:
            text.detach()


@contextmanager
def replacing_bytes(path: Path) -> Iterator[BinaryIO]:
    """``replacing`` for what is not text.

    Raises:
        OSError: when it cannot be written.
    """
    if _is_stream(path):
        with path.open("wb") as stream:
            yield stream
        return
    path = _target(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes the file private; results are as readable as the umask allows.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def remove_unfinished(path: Path) -> None:
    """Remove what processes that were killed left of a file which they were ``replacing``."""
    path = _target(path)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        left.unlink(missing_ok=True)


def leave_no_empty_folder(path: Path) -> None:
    """``remove_unfinished``, and the file's folder where nothing else is in it."""
    remove_unfinished(path)
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` as ``replacing`` does.

    Raises:
        OSError: when it cannot be written.
    """
    with replacing(path) as file:
        file.write(text)


def write_output(option: str, path: Path, text: str) -> None:
    """``write_whole`` for the file that ``option`` of a command names.

    Raises:
        InputError: when it cannot be written.
    """
    with writing(option, path) as file:
        file.write(text)


@contextmanager
def writing(option: str, path: Path) -> Iterator[TextIO]:
    """``replacing`` for the file that ``option`` of a command names.

    Raises:
        InputError: when it cannot be written.
    """
    try:
        with replacing(path) as file:
            yield file
    except OSError as error:
        raise unwritable(option, path, error) from error


def unwritable(option: str, path: Path, error: OSError) -> InputError:
    """What to raise where a command's result cannot be written."""
    return InputError(option, path, f"cannot be written: {error.strerror or error}")


def make_folder(option: str, folder: Path) -> None:
    """Make the folder that ``option`` of a command names, and those it is in.

    Raises:
        InputError: when it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(option, folder, error) from error


def _is_stream(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _same(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return path.samefile(other)
    return _target(path) == _target(other)


def _target(path: Path) -> Path:
    # ``Path.resolve`` raises RuntimeError for links in a circle.
    return Path(os.path.realpath(path))
