"""Files that a user names, looked at before they are read whole."""

from __future__ import annotations

import stat
from pathlib import Path

from .errors import InputError

LARGEST_TABLE_BYTES = 1 << 30


def check_size(field: str, path: Path, most_bytes: int = LARGEST_TABLE_BYTES) -> None:
    """Refuse what is larger than ``most_bytes``, and devices, of which /dev/zero has no end.

    Raises:
        InputError: naming ``field``.
        OSError: for a file that is not there.
    """
    about = path.stat()
    if stat.S_ISCHR(about.st_mode):
        raise InputError(field, path, "is a device", "a file")
    if about.st_size > most_bytes:
        raise InputError(field, path, "is too large", f"at most {most_bytes} bytes")
