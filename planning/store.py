"""Finished cells on disk, by what was asked: an unchanged study is not searched again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from trainscout.planning.answer import Answer
from trainscout.planning.cells import Cell, SearchSettings, digest
from trainscout.simulators.predictor.io.output import write_whole
from trainscout.simulators.predictor.io.values import recorded

FORMAT = 1
_MOST_BYTES = 2**20


class AnswerStore:
    """A directory with one small JSON file a cell. Files are whole or not there, so that a study
    that is killed loses at most the cells in flight."""

    def __init__(self, directory: Path, settings: SearchSettings) -> None:
        self._directory, self._settings = directory, settings

    def read(self, cell: Cell) -> Answer | None:
        """The answer to the cell's question; None when there is none that can be used."""
        path = self._path(cell)
        try:
            if path.stat().st_size > _MOST_BYTES:
                return None
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["format"] != FORMAT:
                return None
            answer: Answer = recorded(Answer, record["answer"])
            return answer
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, cell: Cell, answer: Answer) -> None:
        """Keep an answer that would be the same again."""
        if not answer.final:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        record = {"format": FORMAT, "cell": cell.key, "answer": asdict(answer)}
        write_whole(self._path(cell), json.dumps(record, allow_nan=False) + "\n")

    def _path(self, cell: Cell) -> Path:
        return self._directory / f"{digest(cell, self._settings)}.json"
