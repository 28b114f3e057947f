"""A row's free text read once: facts by name, and every word that no phrase covers."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainscout.simulators.laboratory.published.phrases import LABEL, NOTES, SHARDING, Phrase
from trainscout.simulators.laboratory.published.rows import Row

_PARTS = re.compile(r"[;,()/\[\]]|\.\s|\s-\s|\s\+\s")
_EMPTY = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "each",
        "for",
        "from",
        "given",
        "had",
        "has",
        "in",
        "is",
        "it",
        "its",
        "of",
        "on",
        "only",
        "or",
        "per",
        "so",
        "that",
        "the",
        "their",
        "then",
        "this",
        "to",
        "used",
        "uses",
        "using",
        "was",
        "were",
        "where",
        "which",
        "with",
    ]
)


@dataclass(frozen=True)
class Said:
    """What a row says in words.

    ``label`` are the facts of its framework label, ``facts`` those of label and notes together
    (the notes', where both say one), ``sharding`` those of its optimizer's sharding. ``unread``:
    the parts of them of which some word was read by no phrase, with those words.
    """

    label: Mapping[str, str]
    facts: Mapping[str, str]
    sharding: Mapping[str, str]
    unread: tuple[str, ...]

    def get(self, fact: str) -> str | None:
        """What is said of a fact, "" where it is just there, None where nothing is."""
        return self.facts.get(fact)

    def says(self, fact: str, *values: str) -> bool:
        """Whether a fact is said to be one of the values (or at all, without any)."""
        said = self.facts.get(fact)
        return said is not None and (not values or said in values)


def said_by(row: Row) -> Said:
    """The facts in the words of a row."""
    return _read(row.framework.lower(), row.notes.lower(), row.dist_optimizer.lower())


@functools.lru_cache(maxsize=8192)
def _read(framework: str, notes: str, sharding: str) -> Said:
    label, rest = _facts((*LABEL, *NOTES), framework)
    noted, beside = _facts(NOTES, notes)
    shards, left = _facts(SHARDING, sharding)
    unread = (*_left(rest), *_left(beside), *_left(left))
    return Said(label, {**label, **noted}, shards, tuple(dict.fromkeys(unread)))


def _facts(phrases: Iterable[Phrase], text: str) -> tuple[dict[str, str], str]:
    """The first value of every fact that a text says, and the text without what was read."""
    facts: dict[str, str] = {}
    for phrase in phrases:
        matches = list(_compiled(phrase).finditer(text))
        if not matches:
            continue
        if phrase.fact:
            value = phrase.value if phrase.value is not None else matches[0][1]
            facts.setdefault(phrase.fact, value)
        text = _compiled(phrase).sub(" ; ", text)
    return facts, text


@functools.cache
def _compiled(phrase: Phrase) -> re.Pattern[str]:
    return phrase.compiled


def _left(text: str) -> list[str]:
    """Parts with a word in them that says something."""
    parts = (" ".join(part.split()).strip(" .:=-+'\"") for part in _PARTS.split(text))
    return [part for part in parts if set(re.findall(r"[a-z_]{2,}", part)) - _EMPTY]
