"""What rows say in words, phrase by phrase: ``phrases.yaml``, read.

A phrase's fact is what the readers of a row ask for (``statement.get("attention")``). Words that
no phrase covers are listed with the prediction as *unread*.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainscout.simulators.predictor.io.yaml_files import read_yaml


@dataclass(frozen=True)
class Phrase:
    """``fact=value`` where ``pattern`` matches; without a value, what its first group matched."""

    fact: str
    value: str | None
    pattern: re.Pattern[str]


_TABLES = read_yaml(Path(__file__).with_name("phrases.yaml"))


def _read(*tables: str) -> Iterator[Phrase]:
    for group in (group for table in tables for group in _TABLES[table]):
        for fact, pairs in group.items():
            for value, text in pairs:
                for name, words in _TABLES["words"].items():
                    text = text.replace(f"<{name}>", words)
                yield Phrase(fact, value, re.compile(text.replace("~", r"[\s_\-]?")))


LABEL = tuple(_read("versions", "projects", "label"))
NOTES = tuple(
    _read("experts", "software", "layout", "model", "machines", "versions", "measurement")
)
SHARDING, RECOMPUTE = tuple(_read("sharding")), tuple(_read("recompute"))
ARITHMETIC = tuple(_read("arithmetic"))
GPU, LINKS, CONVENTION = (tuple(_read(name)) for name in ("gpu", "links", "convention"))
EMPTY = frozenset(_TABLES["empty"].split())
"""Words that say nothing."""
