"""A row's free text read once: facts by name, and every word that no phrase covers."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .phrases import (
    ARITHMETIC,
    CONVENTION,
    EMPTY,
    GPU,
    LABEL,
    LINKS,
    NOTES,
    RECOMPUTE,
    SHARDING,
    Phrase,
)
from .rows import Row

# What a version alone in a label is one of.
_IMPLIED = {"mlperf_round": "mlperf", "torch": "pytorch"}
_PARTS = re.compile(r"[;,()/\[\]]|\.\s|\s-\s|\s\+\s")


@dataclass(frozen=True)
class Statement:
    """What a row says in words.

    ``label`` are the facts of its framework label, ``facts`` those of label, precision and notes
    together (the notes', where several say one), ``sharding`` and ``recompute`` those of the
    columns about the optimizer's sharding and recomputation, ``arithmetic`` the type that products
    are made in ("" where it is not said). ``unread``: the parts of them, and of the columns of the
    GPU, its links and the FLOP convention, of which some word was read by no phrase, with those
    words.
    """

    label: Mapping[str, str]
    facts: Mapping[str, str]
    sharding: Mapping[str, str]
    recompute: Mapping[str, str]
    arithmetic: str
    unread: tuple[str, ...]

    def get(self, fact: str) -> str | None:
        """What is said of a fact, "" where it is just there, None where nothing is."""
        return self.facts.get(fact)

    def says(self, fact: str, *values: str) -> bool:
        """Whether a fact is said to be one of the values (or at all, without any)."""
        statement = self.facts.get(fact)
        return statement is not None and (not values or statement in values)


def statement_of(row: Row) -> Statement:
    """The facts in the words of a row."""
    columns = (row.framework, row.notes, row.dist_optimizer, row.recompute, row.dtype)
    beside = (row.gpu.replace("_", "-"), row.intra_link, row.tflops_convention)
    return _read(*(text.lower() for text in (*columns, *beside)))


@functools.lru_cache(maxsize=8192)
def _read(
    framework: str,
    notes: str,
    sharding: str,
    recompute: str,
    dtype: str,
    gpu: str,
    links: str,
    convention: str,
) -> Statement:
    label, rest = _facts((*LABEL, *NOTES), framework)
    if "project" not in label and (implied := label.keys() & _IMPLIED.keys()):
        label["project"] = _IMPLIED[max(implied)]
    noted, beside = _facts(NOTES, notes)
    shards, left = _facts(SHARDING, sharding)
    repeated, over = _facts(RECOMPUTE, recompute)
    # ``fp8-cs`` is an arithmetic and, as in notes, how its operands are scaled.
    arithmetic = _facts(ARITHMETIC, dtype)[0].get("arithmetic", "")
    typed, besides = _facts((*NOTES, *ARITHMETIC), dtype)
    typed.pop("arithmetic", None)
    facts = {**label, **typed, **noted}
    # What these columns say is read where it counts (``gpus``, ``clusters``, ``measured``).
    read_there = ((GPU, gpu), (LINKS, links), (CONVENTION, convention))
    texts = (rest, beside, left, over, besides, *(_facts(*each)[1] for each in read_there))
    unread = (part for text in texts for part in _left(text))
    return Statement(label, facts, shards, repeated, arithmetic, tuple(dict.fromkeys(unread)))


def _facts(phrases: Iterable[Phrase], text: str) -> tuple[dict[str, str], str]:
    """The first value of every fact that a text says, and the text without what was read."""
    facts: dict[str, str] = {}
    for phrase in phrases:
        matches = list(phrase.pattern.finditer(text))
        if not matches:
            continue
        if phrase.fact:
            value = phrase.value if phrase.value is not None else matches[0][1]
            facts.setdefault(phrase.fact, value)
        text = phrase.pattern.sub(" ; ", text)
    return facts, text


def _left(text: str) -> list[str]:
    """Parts with a word in them that says something."""
    parts = (" ".join(part.split()).strip(" .:=-+'\"") for part in _PARTS.split(text))
    return [part for part in parts if set(re.findall(r"[a-z_]{2,}", part)) - EMPTY]
