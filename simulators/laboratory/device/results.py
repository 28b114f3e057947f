"""A CSV file that grows row by row, so that a measurement that was stopped goes on."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from trainscout.simulators.predictor.question.errors import InputError


class RowStore(Protocol):
    """Rows that were measured, wherever they are kept."""

    path: Path

    def __contains__(self, row: Mapping[str, object]) -> bool: ...

    def append(self, row: Mapping[str, object]) -> None: ...


class Rows:
    """Rows kept in memory, of which ``saved`` is told: a table of a file with several.

    ``key`` and ``in`` as in ``ResultFile``.
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


class ResultFile:
    """Rows with fixed columns, appended and flushed one at a time.

    ``key`` names the columns that say what was measured; a row whose key is there already is
    not to be measured again (``in``).
    """

    def __init__(self, path: Path, columns: Sequence[str], key: Sequence[str]) -> None:
        """Read what is there.

        Raises:
            InputError: when the file exists with other columns, or cannot be read or written.
        """
        self.path, self.columns, self.key = path, tuple(columns), tuple(key)
        self._seen: set[tuple[str, ...]] = set()
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("w", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerow(self.columns)
                return
            _drop_cut_line(path)
            with path.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                if tuple(reader.fieldnames or ()) != self.columns:
                    raise InputError(
                        "--output", path, "has other columns", ", ".join(self.columns)
                    )
                self._seen = {self._key(row) for row in reader}
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InputError("--output", path, f"cannot be used ({error})") from error

    def __contains__(self, row: Mapping[str, object]) -> bool:
        return self._key(row) in self._seen

    def values(self, column: str) -> set[str]:
        """What the rows that are there hold in one column of the key."""
        position = self.key.index(column)
        return {key[position] for key in self._seen}

    def append(self, row: Mapping[str, object]) -> None:
        """Write one row; columns it lacks stay empty."""
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns, restval="").writerow(row)
        self._seen.add(self._key(row))

    def _key(self, row: Mapping[str, object]) -> tuple[str, ...]:
        return tuple(str(row.get(name, "")) for name in self.key)


def _drop_cut_line(path: Path) -> None:
    """Remove a last line that a killed run did not finish: it is measured again."""
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
