"""Files of ``trainscout measure``: one JSON object with tables, each a list of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError, read_text

from .csv_files import csv_text

FORMAT, VERSION = "trainscout-observed-factors", 1
"""What such files call themselves; those kept of profiles hold factors, and no tables."""
MOST_BYTES = 64 << 20


def read_measurements(field: str, path: Path) -> dict[str, Any]:
    """The object of such a file.

    Raises:
        InputError: naming ``field``, for a file that cannot be read, is too large, or is none.
    """
    text = read_text(field, path, MOST_BYTES)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(field, path, f"is not JSON: {error}") from None
    allowed = "a file of trainscout measure, or observed_factors.json"
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(field, path, "holds no measurements", allowed)
    if found.get("version") != VERSION:
        problem = f"is of version {found.get('version')}"
        raise InputError(field, path, problem, f"version {VERSION}")
    return found


def rows_text(rows: Any) -> str:
    """A table of such a file as CSV, which every reader of tables checks; "" where it is none."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return ""
    columns = dict.fromkeys(str(name) for row in rows for name in row)
    return csv_text(columns, rows)
