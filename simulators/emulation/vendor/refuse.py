"""What the emulated packages have and do not emulate is refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from simulators.errors import InputError


def refuse(name: str, reason: str, allowed: str | None = None) -> NoReturn:
    """Raise for the use of ``name``, in words a user of the script understands.

    Raises:
        InputError: always.
    """
    raise InputError(name, "used", f"is not emulated: {reason}", allowed)


def refused(name: str, reason: str) -> Callable[..., Any]:
    """A function that refuses to be called."""

    def function(*arguments: Any, **keywords: Any) -> NoReturn:
        refuse(name, reason)

    function.__name__ = name.rpartition(".")[2]
    return function
