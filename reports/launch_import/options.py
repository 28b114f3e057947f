"""A launch command's options: which were read, and with which values."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

from trainscout.reports.launch_import.imported import Unknown
from trainscout.reports.launch_import.shell_values import is_known, shown
from trainscout.simulators.predictor.question.errors import InputError

# Names of launch arguments share most of their words: only nearly equal ones are mistyped.
_SLIP = 0.85


class Options:
    """``--name value ...`` and ``--name=value`` as a framework's parser takes them; the last of
    equal names counts. Reading an option marks it as used."""

    def __init__(self, words: Iterable[str]) -> None:
        self._values: dict[str, list[str]] = {}
        self._used: set[str] = set()
        self._valued: set[str] = set()
        self._asked: set[str] = set()
        self.stray: list[str] = []
        current: list[str] | None = None
        for word in words:
            if word.startswith("--") and len(word) > 2:
                name, equals, value = word.partition("=")
                current = self._values[name] = [value] if equals else []
            elif current is not None:
                current.append(word)
            else:
                self.stray.append(shown(word))

    @property
    def names(self) -> list[str]:
        return list(self._values)

    def has(self, name: str) -> bool:
        """Whether an option was given at all."""
        self._asked.add(name)
        if name in self._values:
            self._used.add(name)
            return True
        return False

    def texts(self, name: str) -> list[str] | None:
        """All values of an option; None when it was not given.

        Raises:
            InputError: for a value that depends on a variable that nothing sets.
        """
        if not self.has(name):
            return None
        self._valued.add(name)
        for value in self._values[name]:
            if not is_known(value):
                raise InputError(
                    name,
                    shown(value),
                    "depends on what the script does not set",
                    "a value; set variables before the command: NAME=value python explain.py ...",
                )
        return self._values[name]

    def text(self, name: str, choices: Collection[str] | None = None) -> str | None:
        """The one value of an option; None when it was not given.

        Raises:
            InputError: when it has none, or one that is not among ``choices``.
        """
        values = self.texts(name)
        if values is None:
            return None
        if not values:
            raise InputError(name, "", "has no value")
        if choices is not None and values[0] not in choices:
            raise InputError(name, values[0], "is not a known choice", choices)
        return values[0]

    def whole(self, name: str) -> int | None:
        """A whole number; None when the option was not given."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            raise InputError(name, text, "is not a whole number") from None

    def number(self, name: str) -> float | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return float(text)
        except ValueError:
            raise InputError(name, text, "is not a number") from None

    def words(self, name: str) -> str:
        """An option with its values, as written."""
        return " ".join([name, *map(shown, self._values[name])])

    def used(self) -> list[str]:
        return [self.words(name) for name in self._values if name in self._used]

    def sort_rest(
        self, no_effect: Collection[str], not_modelled: Mapping[str, str]
    ) -> tuple[list[str], list[tuple[str, str]], list[Unknown]]:
        """Options that were not read: without effect, not modelled (with what is assumed), and
        unknown (with the nearest known name). Names that end in ``*`` stand for a beginning."""
        silent: list[str] = []
        unmodelled: list[tuple[str, str]] = []
        unknown = [Unknown(word, None) for word in self.stray]
        known = [name for name in (*no_effect, *not_modelled) if not name.endswith("*")]
        for name in self._values:
            if name in self._used:
                if name not in self._valued:
                    # More arguments behind a switch, from a variable that nothing sets.
                    unset = (word for word in self._values[name] if not is_known(word))
                    unknown += [Unknown(shown(word), None) for word in unset]
                continue
            if self._values[name] == ["false"]:
                # A switch of a file that is off.
                silent.append(self.words(name))
            elif (entry := _entry(name, not_modelled)) is not None:
                unmodelled.append((self.words(name), not_modelled[entry]))
            elif _entry(name, no_effect) is not None:
                silent.append(self.words(name))
            else:
                unknown.append(Unknown(self.words(name), _nearest(name, [*known, *self._asked])))
        return silent, unmodelled, unknown


def _nearest(name: str, names: Collection[str]) -> str | None:
    """The name that was meant, where one differs by a slip of the pen."""
    found = difflib.get_close_matches(name, names, n=1, cutoff=_SLIP)
    return found[0] if found else None


def _entry(name: str, entries: Collection[str]) -> str | None:
    """The entry that stands for an option: itself, else the longest beginning."""
    if name in entries:
        return name
    beginnings = [each for each in entries if each.endswith("*") and name.startswith(each[:-1])]
    return max(beginnings, key=len, default=None)
