"""The runs of a study on disk: each in a directory named by its time, the last one to compare."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from trainscout.reports.capacity.study_files import FORMAT
from trainscout.simulators.predictor.io.output import write_whole

STUDY = "study.json"
CELLS = "cells"
_STAMP = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(-\d+)?")


def new_directory(study: Path, now: datetime) -> Path:
    """Make a run's directory below its study's; a number tells those of one second apart.

    Raises:
        OSError: when it cannot be made.
    """
    stamp = now.strftime("%Y-%m-%d_%H-%M-%S")
    directory, number = study / stamp, 1
    while True:
        try:
            directory.mkdir(parents=True)
            return directory
        except FileExistsError:
            number += 1
            directory = study / f"{stamp}-{number}"


def last_record(study: Path, name: str) -> dict[str, Any] | None:
    """The record of the latest finished run of the study of that name, which may share its
    directory with others; None when there is none that can be read."""
    for path in sorted(study.glob(f"*/{STUDY}"), key=_written, reverse=True):
        if not _STAMP.fullmatch(path.parent.name):
            continue
        try:
            record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            continue
        if record.get("name") == name:
            return record
    return None


def _written(path: Path) -> tuple[int, str]:
    return path.stat().st_mtime_ns, path.parent.name


def save_run(directory: Path, record: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Write a run's files by name; the record last, since a run that has it is finished.

    Raises:
        OSError: when one cannot be written.
    """
    for name, text in texts.items():
        write_whole(directory / name, text)
    write_whole(directory / STUDY, json.dumps(record, indent=1, allow_nan=False) + "\n")
