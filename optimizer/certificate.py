"""What an exact search has proved: where every point of the space went, and how far off the best
known recipe can still be."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from trainscout.simulators.predictor.memory.bands import FITS, LEAST_FITS, MOST_NO, NO


@dataclass(frozen=True)
class DegreesBound:
    """What bounds say of all ``recipes`` of one (TP, PP): how many ``may_fit``, the value of the
    first objective that none of those can beat (None: none may fit), and the least share of a
    GPU's usable memory that any of them needs."""

    tp: int
    pp: int
    recipes: int
    may_fit: int
    bound: float | None
    least_memory_share: float


@dataclass(frozen=True)
class Certificate:
    """The account of one exact search.

    ``points`` of the space are distinct; ``not_launchable`` counts those that break each validity
    rule, ``equal`` those that mean the same as another one (``equal_by_rule``). Of the
    ``recipes`` left, ``out_of_memory`` have a memory bound that is beyond doubt too large,
    ``out_of_reach`` bounds that known recipes beat; ``simulated`` were replayed (``failed`` of
    them raised: nothing is said about those; ``tight`` may fit) and ``open`` were still to do.
    Where the space is too large to list, ``unlisted`` of those out of memory or reach were ruled
    out together with all that have their passes, by what passes alone take.

    ``reading`` is how memory is read: a recipe *fits* with at least the probability
    ``fits``, and is *beyond doubt* too large below the probability ``no``
    (``predictor.memory.bands``). What is proved is proved of recipes that fit, and
    that no other tight recipe is worth more than those shown (``optimizer.choices``).

    ``proved``: no recipe outside the ``top_k`` reported, or the front, beats any of them by more
    than ``epsilon``, a fraction. So are the best of each of the ``layouts`` best layouts (0: they
    are not), the best with clearly more free memory and the simplest nearly as good one
    (``optimizer.choices``). ``best`` and ``bound``, in the first objective's units: the best
    simulated value, and what nothing else can beat; ``gap`` by what fraction it could
    (None: nothing fits yet).
    """

    objectives: tuple[str, ...]
    points: int
    not_launchable: dict[str, int]
    equal: int
    equal_by_rule: dict[str, int]
    recipes: int
    out_of_memory: int
    out_of_reach: int
    simulated: int
    failed: int
    open: int
    top_k: int
    epsilon: float
    proved: bool
    best: float | None
    bound: float | None
    gap: float | None
    tight: int = 0
    unlisted: int = 0
    layouts: int = 0
    degrees: tuple[DegreesBound, ...] = ()
    reading: dict[str, float] = field(default_factory=lambda: {FITS: LEAST_FITS, NO: MOST_NO})

    @property
    def discarded_share(self) -> float:
        """Share of the launchable recipes that needed no simulation."""
        return (self.out_of_memory + self.out_of_reach) / self.recipes

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {**asdict(self), "discarded_share": self.discarded_share}
