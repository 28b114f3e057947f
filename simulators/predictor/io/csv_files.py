"""Tables as CSV, as the project writes them; those that ship with a header of YAML in comments."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from .yaml_files import parse_yaml


def csv_text(columns: Iterable[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Rows under their titles; empty where a row has no such value.

    Raises:
        ValueError: for a value of no column.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def headed_csv(
    header: Mapping[str, Any], columns: Iterable[str], rows: Iterable[Mapping[str, object]]
) -> str:
    """``csv_text`` below a header: YAML, each line of it a comment."""
    comments = yaml.safe_dump(dict(header), sort_keys=False).splitlines()
    return "".join(f"# {line}\n" for line in comments) + csv_text(columns, rows)


def read_headed_csv(text: str, field: str) -> tuple[dict[str, Any], csv.DictReader[str]]:
    """The header and the rows of ``headed_csv``; ``field`` names the file in errors.

    Raises:
        InputError: for a header that is no YAML.
    """
    lines = text.splitlines(keepends=True)
    header = "".join(line[1:] for line in lines if line.startswith("#"))
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return parse_yaml(header, field, "header"), rows
