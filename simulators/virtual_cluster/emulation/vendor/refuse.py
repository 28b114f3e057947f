"""What the emulated packages have and do not emulate is refused by name, never ignored."""

from __future__ import annotations

from typing import Any, NoReturn

from trainscout.simulators.predictor.question.errors import InputError


def refusal(name: str, reason: str, allowed: str | None = None) -> InputError:
    """What to raise for the use of ``name``, in words a user of the script understands."""
    return InputError(name, "used", f"is not emulated: {reason}", allowed)


def refused(name: str, reason: str) -> type:
    """What refuses to be called; a class, for some packages derive theirs from it on import."""

    def new(*arguments: Any, **keywords: Any) -> NoReturn:
        raise refusal(name, reason)

    return type(name.rpartition(".")[2], (), {"__new__": new})
