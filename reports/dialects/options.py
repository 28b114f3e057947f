"""A launch command's options: which were read, with which values, and what became of the rest."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.errors import InputError

# In a word of a script, stands on both sides of an expansion whose value is not known.
MARK = "\x00"
# Begins the argument that a key of DeepSpeed's JSON is read as.
KEY = "--ds."
# Names of launch arguments share most of their words: only nearly equal ones are mistyped.
_SLIP = 0.85
# Of values, which are shorter: ``lroa``, ``ture``.
_NEARLY = 0.75
_OFF, _ON = ("false", "no", "off", "0"), ("true", "yes", "on", "1", "auto")


def is_known(word: str) -> bool:
    return MARK not in word


def shown(word: str) -> str:
    """A word with what is not known as it was written."""
    return word.replace(MARK, "")


@dataclass(frozen=True)
class Unknown:
    """An argument that the framework is not known to have, and the nearest that it has."""

    argument: str
    nearest: str | None


@dataclass(frozen=True)
class Reading:
    """What became of each argument.

    ``used`` say something of the job; ``no_effect`` have none on a step's time and memory;
    ``not_modelled`` (argument and what is assumed instead) may have, and the prediction is made
    without; ``unknown`` are not the framework's. ``notes`` say how gaps were filled.
    """

    used: tuple[str, ...]
    no_effect: tuple[str, ...]
    not_modelled: tuple[tuple[str, str], ...]
    unknown: tuple[Unknown, ...]
    notes: tuple[str, ...]


def respelled(word: str, old: str, new: str) -> str:
    """An argument with another letter in its name, as it is declared; what is none as it is."""
    name, equals, value = word.partition("=")
    return f"--{name[2:].replace(old, new)}{equals}{value}" if word.startswith("--") else word


def words_of_table(table: Mapping[str, Any], prefix: str = "--") -> list[str]:
    """A file's settings as arguments: ``[training] seq_len = 8192`` as
    ``--training.seq_len=8192``."""
    words = []
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            words += words_of_table(value, f"{name}.")
        elif isinstance(value, bool):
            words.append(f"{name}={str(value).lower()}")
        elif isinstance(value, list):
            words.append(f"{name}={','.join(map(str, value))}")
        else:
            words.append(f"{name}={value}")
    return words


class Options:
    """``--name value ...`` and ``--name=value`` as a framework's parser takes them; the last of
    equal names counts. Reading an option marks it as used; ``notes``, ``assumed`` (argument,
    and what is assumed instead) and ``without_effect`` collect what is worth saying on the way.

    ``older`` maps other names to what they are called here, and to the value that they stand for
    (None: their own). ``defaults`` are values of what is not given, ``taken`` those asked for."""

    def __init__(
        self,
        words: Iterable[str],
        older: Mapping[str, tuple[str, str | None]] | None = None,
        defaults: Mapping[str, str] | None = None,
    ) -> None:
        self._defaults = defaults or {}
        self.taken: dict[str, str] = {}
        self.notes: list[str] = []
        self.assumed: list[tuple[str, str]] = []
        self.without_effect: list[str] = []
        self._values: dict[str, list[str]] = {}
        self._used: set[str] = set()
        self._valued: set[str] = set()
        self._requested: set[str] = set(older or ())
        # Under which name each option was given, and what it stands for.
        self._meant: dict[str, tuple[str, list[str]]] = {}
        self._stray: list[str] = []
        current: list[str] | None = None
        for word in words:
            if word.startswith("--") and len(word) > 2:
                name, equals, value = word.partition("=")
                current = self._values[name] = [value] if equals else []
            elif current is not None:
                current.append(word)
            else:
                self._stray.append(shown(word))
        for name, (now, fixed) in (older or {}).items():
            if name in self._values and (fixed is not None or now not in self._values):
                self._meant[now] = name, self._values[name] if fixed is None else [fixed]

    @property
    def names(self) -> set[str]:
        """The options that were given."""
        return set(self._values)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def assume(self, argument: str, instead: str) -> None:
        """Say that a prediction is made as if ``argument`` were ``instead``."""
        self.assumed.append((argument, instead))

    def has(self, name: str) -> bool:
        """Whether an option was given at all."""
        self._requested.add(name)
        found = {name, self._meant.get(name, (name,))[0]} & set(self._values)
        self._used |= found
        return bool(found)

    def texts(self, name: str) -> list[str] | None:
        """All values of an option; None when it was not given.

        Raises:
            InputError: for a value that depends on a variable that nothing sets.
        """
        if not self.has(name):
            if name not in self._defaults:
                return None
            self.taken[name] = self._defaults[name]
            return [self._defaults[name]]
        name, values = self._meant.get(name) or (name, self._values[name])
        self._valued.add(name)
        for value in values:
            if not is_known(value):
                raise InputError(
                    name,
                    shown(value),
                    "depends on what the script does not set",
                    "a value; set variables before the command: NAME=value trainscout explain ...",
                )
        return values

    def text(self, name: str, choices: Collection[str] | None = None) -> str | None:
        """The one value of an option; None when it was not given.

        Raises:
            InputError: when it has none, or one that is not among ``choices``.
        """
        values = self.texts(name)
        if values is None:
            return None
        if not values:
            raise InputError(self.written(name), "", "has no value")
        if choices is not None and values[0] not in choices:
            raise InputError(self.written(name), values[0], "is not a known choice", choices)
        return values[0]

    def written(self, name: str) -> str:
        """What an option is called where it was given."""
        return self._meant.get(name, (name,))[0]

    def refuse_slip(self, name: str, choices: Collection[str]) -> None:
        """Refuse a value that is nearly one of those known; others are for the caller to judge."""
        value = (self.texts(name) or [""])[0].lower()
        near = difflib.get_close_matches(value, choices, 1, _NEARLY)
        if near and value not in choices:
            field = self.written(name)
            raise InputError(field, value, "is not a known choice", choices, near[0])

    def whole(self, name: str) -> int | None:
        """A whole number; None when the option was not given."""
        text = self.text(name)
        try:
            return None if text is None else int(text)
        except ValueError:
            raise InputError(self.written(name), text, "is not a whole number") from None

    def first_whole(self, *names: str) -> int | None:
        """The first of several names that is given and does not say ``auto``."""
        for name in names:
            values = self.texts(name)
            if values is not None and values[:1] != ["auto"]:
                return self.whole(name)
        return None

    def on(self, name: str) -> bool | None:
        """A switch: alone, or with true or false; None when it was not given."""
        values = self.texts(name)
        if values is None:
            return None
        self.refuse_slip(name, (*_OFF, *_ON))
        return not values or values[0].lower() not in _OFF

    def number(self, name: str) -> float | None:
        text = self.text(name)
        try:
            return None if text is None else float(text)
        except ValueError:
            raise InputError(self.written(name), text, "is not a number") from None

    def percent(self, name: str, choices: Iterable[int], default: float) -> int:
        """A share as the nearest of so many percent.

        Raises:
            InputError: for what is no share.
        """
        value = self.number(name)
        share = default if value is None else value
        if not 0 <= share <= 1:
            raise InputError(name, share, "is no share", "0 to 1")
        nearest = min(choices, key=lambda each: abs(each - 100 * share))
        if nearest != 100 * share:
            self.assume(f"{name} {share:g}", f"it is {nearest / 100:g}")
        return nearest

    def reading(
        self, known: Path, silent: Iterable[str] = (), unread: Collection[str] = ()
    ) -> Reading:
        """What became of every option; call it last.

        ``known`` is the framework's table of options that are not read: those without effect, and
        those that are not modelled, by what is assumed instead. ``silent`` are without effect on
        this job, and so is what of ``unread`` the table does not list. ``*`` in a name stands for
        any of its letters.
        """
        table = read_yaml(known)
        no_effect = [name for names in (*table["no_effect"].values(), silent) for name in names]
        not_modelled = {
            name: assumed
            for assumed, names in table["not_modelled"].items()
            for name in names
            if name not in no_effect
        }
        unaffected = list(self.without_effect)
        unmodelled = list(self.assumed)
        unknown = [Unknown(word, None) for word in self._stray]
        names = [name for name in (*no_effect, *not_modelled, *unread) if "*" not in name]
        for name in self._values:
            if name in self._used:
                if name not in self._valued:
                    # More arguments behind a switch, from a variable that nothing sets.
                    unset = (word for word in self._values[name] if not is_known(word))
                    unknown += [Unknown(shown(word), None) for word in unset]
                continue
            if self._values[name] == ["false"]:
                # A switch of a file that is off.
                unaffected.append(self._as_written(name))
            elif name not in no_effect and (entry := _entry(name, not_modelled)) is not None:
                unmodelled.append((self._as_written(name), not_modelled[entry]))
            elif _entry(name, no_effect) is not None or name in unread:
                unaffected.append(self._as_written(name))
            else:
                nearest = difflib.get_close_matches(name, [*names, *self._requested], 1, _SLIP)
                unknown.append(Unknown(self._as_written(name), next(iter(nearest), None)))
        return Reading(
            used=tuple(self._as_written(name) for name in self._values if name in self._used),
            no_effect=tuple(unaffected),
            not_modelled=tuple(unmodelled),
            unknown=tuple(unknown),
            notes=tuple(self.notes),
        )

    def _as_written(self, name: str) -> str:
        """An option with its values, as written; keys of a file as they stand there."""
        return " ".join([name.removeprefix(KEY), *map(shown, self._values[name])])


def _entry(name: str, entries: Collection[str]) -> str | None:
    """The entry that stands for an option: itself, else the longest pattern."""
    if name in entries:
        return name
    patterns = (each for each in entries if "*" in each and fnmatchcase(name, each))
    return max(patterns, key=len, default=None)
