"""Where what is made once is kept: compiled functions, traced layers, emulation's library."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

FIELD = "TRAINSCOUT_CACHE"


def cache_folder() -> Path:
    """What ``TRAINSCOUT_CACHE`` names, else ``trainscout`` where the user's caches are
    (``XDG_CACHE_HOME`` or ``~/.cache``). Where nothing can be written there, a temporary folder
    of this user's; stderr says so once, and processes started from here take the same.
    """
    if value := os.environ.get(FIELD):
        return Path(value)
    # Stays as it is for a user without a home.
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(base) and _writable(Path(base)):
        return Path(base, "trainscout")
    folder = _temporary()
    os.environ[FIELD] = str(folder)
    print(
        f"note: {base} cannot be written: caches are in {folder} ({FIELD}= names another folder)",
        file=sys.stderr,
    )
    return folder


def keep_compiled() -> None:
    """Have numba keep what it compiles in the cache where our code lies in no writable place:
    to be called before numba is loaded."""
    if "NUMBA_CACHE_DIR" not in os.environ and not os.access(Path(__file__).parent, os.W_OK):
        with contextlib.suppress(OSError):
            os.environ["NUMBA_CACHE_DIR"] = str(cache_folder() / "numba")


def _writable(folder: Path) -> bool:
    existing = next(each for each in (folder, *folder.parents) if os.path.exists(each))
    return existing.is_dir() and os.access(existing, os.W_OK)


def _temporary() -> Path:
    import tempfile

    # Compiled code is loaded from there: nobody else may have put it there.
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir(), f"trainscout-{user}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != user or status.st_mode & 0o022:
        return Path(tempfile.mkdtemp(prefix="trainscout-"))
    return folder
