"""Rows that were measured, so that a measurement that was stopped goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class Rows:
    """A table of a file with several, kept in memory; ``saved`` is told of every new row.

    ``key`` names the columns that say what was measured; a row whose key is there already is
    not to be measured again (``in``).
    """

    def __init__(
        self,
        path: Path,
        key: Sequence[str],
        rows: list[dict[str, object]],
        saved: Callable[[], None],
    ) -> None:
        self.path, self._key, self.rows, self._saved = path, tuple(key), rows, saved
        self._seen = {self._of(row) for row in rows}

    def __contains__(self, row: Mapping[str, object]) -> bool:
        return self._of(row) in self._seen

    def append(self, row: Mapping[str, object]) -> None:
        self.rows.append(dict(row))
        self._seen.add(self._of(row))
        self._saved()

    def _of(self, row: Mapping[str, object]) -> tuple[str, ...]:
        return tuple(str(row.get(name, "")) for name in self._key)
