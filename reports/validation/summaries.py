"""What the other validators found, reduced to the figures that may ship with the project."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reports.validation.published import DATA
from simulators.errors import InputError

COLLECTIVES = DATA / "collectives_accuracy.json"
KERNELS = DATA / "kernels_accuracy.json"
_FIELDS = ("n", "skipped", "median_abs_error", "mean_abs_error", "p90_abs_error", "bias")
MAX_BYTES = 256 * 2**20


def stored_summary(path: Path) -> dict[str, Any] | None:
    """A summary kept with the project, or None when there is none."""
    return read_summary(path) if path.exists() else None


def read_summary(path: Path) -> dict[str, Any]:
    """``overall`` and every ``by_...`` of a validator's JSON file, without its rows.

    Raises:
        InputError: for a file that is not a validator's result.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError("summary", path, "is too large", f"at most {MAX_BYTES} bytes")
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError("summary", path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError("summary", path, f"is not JSON: {error}") from error
    if not isinstance(found, dict) or "overall" not in found:
        raise InputError("summary", path, "is not a validator's result", "a file with 'overall'")
    summary: dict[str, Any] = {"overall": _checked(path, "overall", found["overall"])}
    for key, groups in found.items():
        if key.startswith("by_") and isinstance(groups, dict):
            summary[key] = {
                name: _checked(path, f"{key}.{name}", group) for name, group in groups.items()
            }
    return summary


def _checked(path: Path, where: str, summary: object) -> dict[str, Any]:
    if not isinstance(summary, Mapping) or any(name not in summary for name in _FIELDS):
        raise InputError("summary", path, f"{where} lacks a figure", ", ".join(_FIELDS))
    return {name: summary[name] for name in _FIELDS}
