"""How often the error bars hold the measured steps of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainscout.simulators.laboratory.published.replay import Result
from trainscout.simulators.predictor.uncertainty import LEVEL
from trainscout.simulators.predictor.uncertainty.table import published_residuals


def coverage_of(results: Sequence[Result]) -> dict[str, Any]:
    """Shares of the measured runs inside their interval; None where there is no run.

    ``inside`` counts all ``n`` runs with an interval. Of those, ``inside_unseen`` counts only the
    ``n_unseen`` runs that the error bars were not made from (by id): for published rows, which
    they were made from, see the figures of runs left out in ``docs/accuracy.md``.
    """
    seen = published_residuals().ids
    held: list[bool] = []
    held_unseen: list[bool] = []
    for result in results:
        if result.measured_s is None or result.prediction is None:
            continue
        if result.prediction.interval_s is None:
            continue
        low, high = result.prediction.interval_s
        held.append(low <= result.measured_s <= high)
        if result.row.id not in seen:
            held_unseen.append(held[-1])
    return {
        "level": LEVEL,
        "n": len(held),
        "inside": _share(held),
        "n_unseen": len(held_unseen),
        "inside_unseen": _share(held_unseen),
    }


def _share(held: Sequence[bool]) -> float | None:
    return sum(held) / len(held) if held else None
