"""What the emulated packages have and do not emulate is refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from trainscout.simulators.predictor.question.errors import InputError

# Told of every refusal, which the script may swallow: the recorders of this process.
listeners: list[Callable[[InputError], None]] = []


def refusal(name: str, reason: str, allowed: str | None = None) -> InputError:
    """What to raise for the use of ``name``, in words a user of the script understands."""
    error = InputError(name, "used", f"is not emulated: {reason}", allowed)
    for heard in listeners:
        heard(error)
    return error


def refused(name: str, reason: str) -> type:
    """What refuses to be called; a class, for some packages derive theirs from it on import."""

    def new(*arguments: Any, **keywords: Any) -> NoReturn:
        raise refusal(name, reason)

    return type(name.rpartition(".")[2], (), {"__new__": new})
