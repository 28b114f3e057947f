"""Wrong input, refused before anything is done: what is wrong, where, and what would be right."""

from __future__ import annotations

import difflib
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from .redaction import redacted, shown

_VALUES = re.compile(
    r"[<>=\d(\[']|-\d|(a finite|at most|a number|a whole number|true or false|text\b|a list|here |"
    r"names and|the fields)|[\w./:-]+((, | or |, or )[\w./:-]+)*( and \d+ more)?$"
)

# Of more names than that only so many, the nearest in spelling, are listed.
_MOST_NAMES, _SHOWN_NAMES = 24, 12
# Letters that make a beginning of a name likelier than a misspelling of another.
_LEAST_BEGUN = 3


class InputError(ValueError):
    """A value a user declared cannot be used.

    To refuse a value, in the docstrings of this project, is to raise this of it, naming its field.

    Args:
        field: dotted name of the offending field, as the user writes it (``recipe.tp``).
        value: what was given.
        problem: what is wrong with it, in a few words.
        allowed: the valid choices or the allowed range, as text or as a list of names; or, in
            words, what to do instead.
        nearest: the valid name that was probably meant; by default looked for among the
            allowed names, closest in spelling to the value.
    """

    def __init__(
        self,
        field: str,
        value: object,
        problem: str,
        allowed: str | Iterable[str] | None = None,
        nearest: str | None = None,
    ) -> None:
        self.field = field
        self.value = value
        self.problem = problem
        self.nearest = nearest
        if allowed is not None and not isinstance(allowed, str):
            names = sorted(str(name) for name in allowed)
            self.nearest = nearest or nearest_name(str(value), names)
            allowed = ", ".join(names)
            if len(names) > _MOST_NAMES:
                meant = self.nearest or str(value)
                near = difflib.get_close_matches(meant, names, _SHOWN_NAMES, cutoff=0.0)
                allowed = f"{', '.join(sorted(near))} and {len(names) - len(near)} more"
        self.allowed = allowed
        super().__init__(self._text())

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process boundaries by their constructor arguments.
        return (InputError, (self.field, self.value, self.problem, self.allowed, self.nearest))

    def _text(self) -> str:
        text = f"{self.field}={redacted(self.value)}: {self.problem}"
        if self.nearest is not None:
            text += f"; did you mean {self.nearest!r}?"
        if self.allowed:
            # What is no value says what to do.
            text += f" ({'allowed: ' if _VALUES.match(self.allowed) else ''}{self.allowed})"
        return shown(text)


def nearest_name(value: str, names: Iterable[str]) -> str | None:
    """The valid name closest in spelling to ``value``, whatever its case and hyphens, or None when
    none is close. Of names that begin with it (``a100``) the shortest."""
    plain, meant = {_plain(name): name for name in names}, _plain(value)
    begun = sorted((name for name in plain if name.startswith(meant)), key=len)
    if begun and len(meant) >= _LEAST_BEGUN:
        return plain[begun[0]]
    matches = difflib.get_close_matches(meant, list(plain), n=1, cutoff=0.5)
    return plain[matches[0]] if matches else None


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


MOST = 1e30
"""No quantity of a question is larger: products of several stay numbers that machines have."""


def require_positive(
    field: str, value: float, *, allow_zero: bool = False, most: float = MOST
) -> None:
    """Refuse NaN, infinities, negatives, (unless allowed) zero, and what is above ``most``."""
    finite = isinstance(value, (int, float)) and value == value and abs(value) != float("inf")
    if not finite or value < 0 or (value == 0 and not allow_zero):
        bound = ">= 0" if allow_zero else "> 0"
        kind = "a whole number" if type(value) is int else "a finite number"
        raise InputError(field, value, "is out of range", f"{kind} {bound}")
    if value > most:
        allowed = f"at most {MOST:g}" if most == MOST else f"{int(not allow_zero)}..{most}"
        raise InputError(field, value, "is out of range", allowed)


def require_whole(field: str, value: int, least: int = 1) -> None:
    """Refuse what is not a whole number of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(field, value, "is out of range", f"a whole number >= {least}")


def require_choice(field: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is not one of ``choices``, naming the nearest.

    Raises:
        InputError: with the list of choices.
    """
    choices = list(choices)
    if value not in choices:
        raise InputError(field, value, "is not a known choice", choices)


LARGEST_TABLE_BYTES = 1 << 30


def check_size(
    field: str, path: Path, most_bytes: int = LARGEST_TABLE_BYTES, allowed: str | None = None
) -> None:
    """Refuse what is larger than ``most_bytes``, and devices, of which /dev/zero has no end.

    Raises:
        InputError: naming ``field``.
        OSError: for a file that is not there.
    """
    about = path.stat()
    if stat.S_ISCHR(about.st_mode):
        raise InputError(field, path, "is a device", allowed or "a file")
    if about.st_size > most_bytes:
        raise InputError(field, path, "is too large", f"at most {most_bytes} bytes")


def read_text(
    field: str, path: Path, most_bytes: int = LARGEST_TABLE_BYTES, allowed: str | None = None
) -> str:
    """What a file says, without the mark that spreadsheets and editors of Windows begin it with.

    Raises:
        InputError: naming ``field``, for a file that cannot be read, is too large or no UTF-8.
    """
    try:
        check_size(field, path, most_bytes, allowed)
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise InputError(field, path, f"cannot be read: {reason}", allowed) from error
