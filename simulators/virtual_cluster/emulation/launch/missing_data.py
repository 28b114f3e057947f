"""What a script that asked the net for data or weights is to be given instead."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

# What urllib, requests, httpx and the hub's library raise where nothing is reached.
_UNREACHED = {
    "ConnectError",
    "ConnectionError",
    "LocalEntryNotFoundError",
    "MaxRetryError",
    "OfflineModeIsEnabled",
    "URLError",
}
# What their functions call the name of what they load, and where torch.hub keeps it.
_REPOSITORIES = ("repo_id", "pretrained_model_name_or_path")
_ADDRESSES = ("url", "fullurl")
_KEPT = "dst"
_CHECKSUMS = ("md5", "hash_prefix")
_HELD = (*_REPOSITORIES, *_ADDRESSES, _KEPT, *_CHECKSUMS)


def how_to_bring(error: BaseException) -> str | None:
    """The line for a script that ended because the net could not be reached, or None."""
    chain = list(_chain(error))
    if not any(type(each).__name__ in _UNREACHED for each in chain):
        return None
    held = [name for each in chain for name in _locals(each.__traceback__)]
    for name, value in held:
        if name in _REPOSITORIES and not value.startswith((".", "/")):
            return (
                f"{value} is of a hub that is not reached: a folder {Path.cwd() / value} is taken "
                "instead, with files of the same names and sizes and any values"
            )
    for name, value in held:
        if name in _ADDRESSES and value.startswith("http"):
            kept = next((f", as {one}" for key, one in held if key == _KEPT), "")
            if any(key in _CHECKSUMS for key, _ in held):
                return f"{value} is not reached: bring it{kept}; its checksum is looked at"
            return f"{value} is not reached: bring a file of its form and sizes, any values{kept}"
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _locals(trace: TracebackType | None) -> list[tuple[str, str]]:
    """Texts by name in the functions that were left, the innermost first."""
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    return [
        (name, str(value))
        for frame in reversed(frames)
        for name, value in frame.f_locals.items()
        if name in _HELD and isinstance(value, str | Path)
    ]
