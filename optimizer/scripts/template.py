"""A launch with places for its settings: ``train.py --tp {tp}``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainscout.simulators.predictor.question.errors import InputError

# ``{name}`` is a place; ``{{name}}`` stands for itself, and other braces (JSON) are left alone.
_PLACE = re.compile(r"\{\{(\w+)\}\}|\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True)
class Template:
    """What a launch consists of before its settings are filled in.

    ``words``: script and arguments. ``environment``: by variable. ``files``: content of
    configuration files by name; ``{name}`` among the words is where the filled-in copy lies.
    """

    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def places(self) -> Mapping[str, str]:
        """The names that are placed, each with where it is first."""
        found: dict[str, str] = {}
        parts = [(f"script: {word}", word) for word in self.words]
        parts += [(f"environment.{name}", text) for name, text in self.environment.items()]
        parts += [(f"files.{name}", text) for name, text in self.files.items()]
        for where, text in parts:
            for name in names_in(text):
                found.setdefault(name, where)
        return {name: where for name, where in found.items() if name not in self.files}

    def check(self, known: Sequence[str]) -> None:
        """Refuse places that nothing fills, and files that no word names.

        Raises:
            InputError: naming the place.
        """
        for name, where in self.places.items():
            if name not in known:
                raise InputError(where, f"{{{name}}}", "is no knob and not derived", known)
        named = {name for word in self.words for name in names_in(word)}
        for name in self.files:
            if name not in named:
                problem = "is read by no argument of the script"
                raise InputError("files", name, problem, f"{{{name}}} among the arguments")
            if name in known:
                raise InputError("files", name, "is a name already", "another name")

    def words_with(self, texts: Mapping[str, str], split: frozenset[str]) -> tuple[str, ...]:
        """The words filled in; a word that is one of the ``split`` places and nothing else becomes
        the words of its text, or none. Places of files stay."""
        made: list[str] = []
        for word in self.words:
            place = _PLACE.fullmatch(word)
            if place is not None and place[2] in split:
                made += shlex.split(texts[place[2]])
            else:
                made.append(filled(word, texts))
        return tuple(made)


def names_in(text: str) -> list[str]:
    """The names placed in a text."""
    return [found[2] for found in _PLACE.finditer(text) if found[2]]


def filled(text: str, texts: Mapping[str, str]) -> str:
    """A text with every known place filled in."""

    def value(found: re.Match[str]) -> str:
        if found[1]:
            return f"{{{found[1]}}}"
        return texts.get(found[2], found[0])

    return _PLACE.sub(value, text)
