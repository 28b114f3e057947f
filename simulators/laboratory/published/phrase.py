"""One thing that rows say in words, and the pattern it is said in."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Phrase:
    """``fact=value`` where ``pattern`` matches; without a value, what its first group matched.

    ``~`` in a pattern is any one separator or none. Earlier phrases take their words away from
    later ones, so what negates or narrows another stands above it.
    """

    fact: str
    value: str | None
    pattern: str

    @property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern.replace("~", r"[\s_\-]?"))


def phrases(fact: str, *pairs: tuple[str | None, str]) -> tuple[Phrase, ...]:
    return tuple(Phrase(fact, value, pattern) for value, pattern in pairs)
