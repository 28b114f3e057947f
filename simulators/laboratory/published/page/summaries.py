"""What the other validators found, reduced to the figures that may ship with the project."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainscout.simulators.laboratory.published.published import DATA
from trainscout.simulators.predictor.question.errors import InputError

COLLECTIVES = DATA / "collectives_accuracy.json"
KERNELS = DATA / "kernels_accuracy.json"
_FIELDS = ("n", "skipped", "median_abs_error", "mean_abs_error", "p90_abs_error", "bias")
MAX_CHARACTERS = 16 * 2**20
_CHUNK = 2**20
_ROWS = '"rows":'
AVERAGED = "per_cluster_and_band_mean_of_medians"
NCCL, SAME_ROWS = "nccl_model", "ours_on_the_same_rows"


def stored_summary(path: Path) -> dict[str, Any] | None:
    """A summary kept with the project, or None when there is none."""
    return read_summary(path) if path.exists() else None


def read_summary(path: Path) -> dict[str, Any]:
    """``overall`` and every ``by_...`` of a validator's JSON file, without its rows.

    Of collectives also the average over clusters and size bands, and NCCL's own model.

    Raises:
        InputError: for a file that is not a validator's result.
    """
    try:
        found = json.loads(_figures(path))
    except OSError as error:
        raise InputError("summary", path, f"cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise InputError("summary", path, f"is not JSON: {error}") from error
    except UnicodeDecodeError as error:
        raise InputError("summary", path, "is not text in UTF-8") from error
    if not isinstance(found, dict) or "overall" not in found:
        raise InputError("summary", path, "is not a validator's result", "a file with 'overall'")
    summary: dict[str, Any] = {"overall": _checked(path, "overall", found["overall"])}
    for key, groups in found.items():
        if key.startswith("by_") and isinstance(groups, dict):
            summary[key] = {
                name: _checked(path, f"{key}.{name}", group) for name, group in groups.items()
            }
    if AVERAGED in found:
        summary |= _averaged(path, "overall", found)
        own = found.get(NCCL, {})
        same = _figures_of(path, SAME_ROWS, own.get(SAME_ROWS, {}))
        summary[NCCL] = {**_figures_of(path, NCCL, own), SAME_ROWS: same}
    return summary


def _figures(path: Path) -> str:
    """The file up to its rows, closed: validators write their figures first, and of kernels there
    are millions of rows.
    """
    head = ""
    with path.open(encoding="utf-8") as file:
        while (part := file.read(_CHUNK)) and _ROWS not in head:
            head += part
            if len(head) > MAX_CHARACTERS:
                allowed = f"at most {MAX_CHARACTERS} characters before its rows"
                raise InputError("summary", path, "is too large", allowed)
    figures, rows, _ = head.partition(_ROWS)
    return figures.rstrip().removesuffix(",") + "}" if rows else head


def _figures_of(path: Path, where: str, found: Mapping[str, Any]) -> dict[str, Any]:
    overall = _checked(path, where, found.get("overall"))
    return {"overall": overall, **_averaged(path, where, found)}


def _averaged(path: Path, where: str, found: Mapping[str, Any]) -> dict[str, float]:
    value = found.get(AVERAGED)
    if not isinstance(value, float):
        raise InputError("summary", path, f"{where} lacks a figure", AVERAGED)
    return {AVERAGED: value}


def _checked(path: Path, where: str, summary: object) -> dict[str, Any]:
    if not isinstance(summary, Mapping) or any(name not in summary for name in _FIELDS):
        raise InputError("summary", path, f"{where} lacks a figure", ", ".join(_FIELDS))
    return {name: summary[name] for name in _FIELDS}
