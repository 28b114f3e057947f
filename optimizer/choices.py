"""What a search leaves to choose from: layouts, one with memory to spare, a simple one; and of the
recipes that may fit those that are worth showing next to those that do.

A layout is how the GPUs of a job share its work: recipes of one layout differ in switches only.

A recipe that may fit is worth its gain over what fits times its probability to fit; where nothing
fits, its probability alone. Its gain over a recipe is the share by which it is better in the
objective where it is most, and over a front the least of those over its recipes (the additive
epsilon indicator: Zitzler et al. 2003): more than nothing where none of them dominates it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainscout.optimizer.objective import Objective
from trainscout.optimizer.trial import Choices, Trial
from trainscout.pruning.recipe_table import RecipeTable
from trainscout.simulators.predictor.question.recipe import RECIPE_DEFAULTS, Recipe

Layout = tuple[int, int, int, int, int, bool]

LAYOUT_FIELDS = ("tp", "pp", "cp", "ep", "etp", "zero_stage")
_NO_SWITCHES = (*LAYOUT_FIELDS, "framework", "micro_batch")
_SHARDED = 3


def layout_of(recipe: Recipe) -> Layout:
    """The degrees, and whether parameters are sharded over data-parallel ranks."""
    etp = recipe.tp if recipe.etp is None else recipe.etp
    degrees = (recipe.tp, recipe.pp, recipe.cp, recipe.ep, etp)
    return (*degrees, recipe.zero_stage >= _SHARDED)


def layout_numbers(table: RecipeTable, numbers: dict[Layout, int]) -> NDArray[np.int64]:
    """For each recipe a number, from 0, that those of its layout share; ``numbers`` are those
    given before, and grow."""
    found, layouts = table.each(LAYOUT_FIELDS, layout_of)
    own = [numbers.setdefault(each, len(numbers)) for each in layouts]
    return found.spread(np.array(own, dtype=np.int64))


def count_switches(table: RecipeTable) -> NDArray[np.int64]:
    """For each recipe how many of its switches (fields beside the layout's, the micro-batch and
    the framework) are not what they are by default."""
    count = np.zeros(len(table), dtype=np.int64)
    for name, default in RECIPE_DEFAULTS.items():
        if name in table.columns and name not in _NO_SWITCHES:
            values, codes = table.columns[name]
            count += np.array([value != default for value in values], dtype=np.int64)[codes]
    return count


SHOWN_LAYOUTS = 5
"""The best recipe of each of so many best layouts is proved, and shown."""
CLEARLY_LESS = 0.1
"""A roomy recipe needs less memory than the best by this share of what is usable."""
NEARLY_BEST = 0.02
"""A simple recipe is behind the best by no more than this share."""


def choices(ranked: Sequence[Trial], objective: Objective) -> Choices:
    """The choices among trials that fit, best first; of several objectives none."""
    if not ranked or len(objective.names) > 1:
        return Choices()
    losses = [objective.losses(trial.values or ())[0] for trial in ranked]
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


SHOWN_TIGHT = 3
"""So many are proved to be worth most, and shown."""

Floats = NDArray[np.float64]


def worth(losses: Floats, chances: Floats, front: Sequence[Sequence[float]]) -> Floats:
    """What recipes that may fit are worth, shape (rows,).

    Args:
        losses: shape (rows, objectives).
        chances: how likely each fits.
        front: losses of the best that fits, or of the front; empty: nothing does.
    """
    gain = np.full(len(losses), np.inf) if front else np.ones(len(losses))
    for known in np.array(front):
        gain = np.minimum(gain, ((known - losses) / np.abs(known)).max(axis=1))
    return gain * chances
