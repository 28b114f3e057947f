"""What a search leaves to choose from: layouts, one with memory to spare, a simple one."""

from __future__ import annotations

from collections.abc import Sequence

from trainscout.optimizer.layouts import count_switches, layout_of
from trainscout.optimizer.trial import Choices, Trial
from trainscout.pruning.recipe_table import RecipeTable

SHOWN_LAYOUTS = 5
"""The best recipe of each of so many best layouts is proved, and shown."""
CLEARLY_LESS = 0.1
"""A roomy recipe needs less memory than the best by this share of what is usable."""
NEARLY_BEST = 0.02
"""A simple recipe is behind the best by no more than this share."""


def choices(ranked: Sequence[Trial], losses: Sequence[float]) -> Choices:
    """The choices among trials that fit.

    Args:
        ranked: best first.
        losses: of each.
    """
    if not ranked:
        return Choices()
    layouts: dict[object, Trial] = {}
    for trial in ranked:
        layouts.setdefault(layout_of(trial.recipe), trial)
    most = _need(ranked[0]) - CLEARLY_LESS
    reach = losses[0] + NEARLY_BEST * abs(losses[0])
    near = [trial for trial, loss in zip(ranked, losses, strict=True) if loss <= reach]
    switches = count_switches(RecipeTable.of([trial.recipe for trial in near]))
    fewest = near[int(switches.argmin())]
    return Choices(
        tuple(layouts.values())[:SHOWN_LAYOUTS],
        next((trial for trial in ranked if _need(trial) <= most), None),
        None if fewest is ranked[0] else fewest,
    )


def _need(trial: Trial) -> float:
    """The share of what is usable that the fullest GPU must hold."""
    assert trial.prediction is not None
    memory = trial.prediction.memory
    return 1 - memory.headroom_bytes / memory.capacity_bytes
