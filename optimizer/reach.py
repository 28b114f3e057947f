"""What may still come of recipes that were only bounded: which are worth a simulation, and first.

A search by bounds has several things to prove of one objective, each a best of its own:

* *recipes*: the best ``top_k``;
* *layouts*: the best recipe of each of the best layouts (``optimizer.choices``);
* *roomy*: the best that needs clearly less memory than the best of all;
* *tight*: those that may fit and would be worth most (``optimizer.choices``), one a layout;
* *simple*: of those nearly as good as the best, the one with the fewest switches.

A recipe is open while its bounds let it become one of these. A bound of the loss is never above
what simulating gives, one of the memory neither, so nothing that is not open can.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from trainscout.optimizer.bounding import Rows, beaten
from trainscout.optimizer.choices import (
    CLEARLY_LESS,
    NEARLY_BEST,
    SHOWN_LAYOUTS,
    SHOWN_TIGHT,
    worth,
)
from trainscout.optimizer.objective import non_dominated
from trainscout.optimizer.samplers.base import Evaluation
from trainscout.pruning.recipe_table import Mask
from trainscout.simulators.predictor.memory.bands import LEAST_FITS

# Of a layout so many are simulated before what they came to says what else is open.
_LAYOUT_AT_ONCE = 2

Floats = NDArray[np.float64]


class Reach:
    """Which recipes are open, of several objectives or of one.

    Args:
        losses: bounds, shape (rows, objectives).
        needs: bounds of the memory as shares of what is usable.
        chances: at best, how likely each fits.
        layouts: number of each row's layout.
        switches: how many each row has.
        top_k: how many best are wanted; for 1, nothing else is.
        epsilon: by what fraction what is not simulated may beat what is reported.
    """

    def __init__(
        self,
        losses: Floats,
        needs: Floats,
        chances: Floats,
        layouts: Rows,
        switches: Rows,
        top_k: int,
        epsilon: float,
    ) -> None:
        self._losses, self._loss = losses, losses[:, 0]
        self._needs, self._chances = needs, chances
        self._layouts, self._switches = layouts, switches
        self._top_k, self._epsilon = top_k, epsilon
        self._single = losses.shape[1] == 1
        self._may_fit = chances >= LEAST_FITS
        # Losses, need, row, of what fits, in no order; of several objectives their front.
        self._fits: list[tuple[float, float, int]] = []
        self._front: list[tuple[float, ...]] = []
        self._tight: list[tuple[float, float, int]] = []

    def add(self, row: int, evaluation: Evaluation) -> None:
        """A row that was simulated."""
        if evaluation.losses is None:
            return
        loss = evaluation.losses[0]
        if evaluation.tight:
            self._tight.append((loss, evaluation.tight, row))
        elif evaluation.memory_violation <= 0:
            self._fits.append((loss, 1 + evaluation.memory_violation, row))
            if not self._single:
                found = [*self._front, evaluation.losses]
                self._front = [found[index] for index in non_dominated(found)]

    @property
    def best(self) -> float | None:
        """The smallest loss of the first objective that fits."""
        return min(self._fits)[0] if self._fits else None

    def is_open(self, rows: Rows) -> Mask:
        """Which of the rows could be among what is proved."""
        found = np.zeros(len(rows), dtype=np.bool_)
        for goal in self._goals():
            found |= goal(rows)
        return found

    def most_loss(self) -> float:
        """No row with a bound above this is open (infinite: any may be)."""
        if not self._single or not self._fits:
            return np.inf
        losses = sorted(loss for loss, _, _ in self._fits)
        most = [losses[self._top_k - 1] if len(losses) >= self._top_k else np.inf]
        if self._top_k > 1:
            least = min(self._fits)[1] - CLEARLY_LESS
            roomy = [loss for loss, need, _ in self._fits if need <= least]
            near = losses[0] + NEARLY_BEST * abs(losses[0])
            most += [self._last_layout(), min(roomy, default=np.inf), near]
        return float(max(most))

    def first_of_each(self, rows: Rows, count: int) -> Rows:
        """Of each thing to prove, the ``count`` of the rows that serve it most."""
        found = [
            self._in_order(goal, open_rows)[:count]
            for goal in self._goals()
            if len(open_rows := rows[goal(rows)])
        ]
        return np.unique(np.concatenate([rows[:0], *found]))

    def first(self, rows: Rows) -> Rows:
        """Those of the rows to simulate next, most useful first; none when none is open."""
        for goal in self._goals():
            open_rows = rows[goal(rows)]
            if len(open_rows):
                return self._in_order(goal, open_rows)
        return rows[:0]

    def open_first(self, rows: Rows) -> Rows:
        """All those of the rows that are open for what ``first`` is about, the best bounds
        first."""
        for goal in self._goals():
            open_rows = rows[goal(rows)]
            if len(open_rows):
                return open_rows[np.argsort(self._loss[open_rows], kind="stable")]
        return rows[:0]

    def _goals(self) -> tuple[Callable[[Rows], Mask], ...]:
        """What is proved, in the order in which knowing one keeps others from being open."""
        if not self._single:
            return (self.could_win,)
        if self._top_k == 1:
            return self.could_win, self._tight_ones
        return self.could_win, self._best_of_layouts, self._roomy, self._tight_ones, self._simple

    def _in_order(self, goal: Callable[[Rows], Mask], rows: Rows) -> Rows:
        by_loss = rows[np.argsort(self._loss[rows], kind="stable")]
        if goal == self._best_of_layouts:
            _, of = np.unique(self._layouts[by_loss], return_inverse=True)
            place = np.zeros(len(by_loss), dtype=np.int64)
            for layout in range(of.max() + 1):
                place[of == layout] = np.arange(np.count_nonzero(of == layout))
            return by_loss[place < _LAYOUT_AT_ONCE]
        if goal == self._tight_ones:
            value = self._worth(by_loss)
            return by_loss[np.argsort(-value, kind="stable")]
        if goal == self._simple:
            return by_loss[np.argsort(self._switches[by_loss], kind="stable")]
        return by_loss

    def could_win(self, rows: Rows) -> Mask:
        """Which of the rows could be among the best ``top_k``, or on the front."""
        if not self._single:
            return ~beaten(self._losses[rows], self._front, self._top_k, self._epsilon)
        known = [(loss,) for loss, _, _ in sorted(self._fits)[: self._top_k]]
        out = beaten(self._losses[rows], known, self._top_k, self._epsilon)
        return self._may_fit[rows] & ~out

    def _best_of_layouts(self, rows: Rows) -> Mask:
        """An equal recipe takes nobody's place: which of them is shown says no more."""
        best = self._layout_losses()
        ahead = self._ahead(rows, np.minimum(best, self._last_layout())[self._layouts[rows]])
        return self._may_fit[rows] & ahead

    def _layout_losses(self) -> Floats:
        """The best of each layout that fits."""
        best = np.full(int(self._layouts.max(initial=0)) + 1, np.inf)
        for loss, _, row in self._fits:
            best[self._layouts[row]] = min(best[self._layouts[row]], loss)
        return best

    def _last_layout(self) -> float:
        """The best of the last layout that is shown; infinite while there are fewer."""
        best = np.sort(self._layout_losses())[:SHOWN_LAYOUTS]
        return float(best[-1])

    def _roomy(self, rows: Rows) -> Mask:
        if not self._fits:
            return np.zeros(len(rows), dtype=np.bool_)
        most = min(self._fits)[1] - CLEARLY_LESS
        roomy = [loss for loss, need, _ in self._fits if need <= most]
        return (
            self._may_fit[rows]
            & (self._needs[rows] <= most)
            & self._ahead(rows, np.array(min(roomy, default=np.inf)))
        )

    def _best(self) -> list[tuple[float]]:
        return [] if self.best is None else [(self.best,)]

    def _worth(self, rows: Rows) -> Floats:
        return worth(self._losses[rows], self._chances[rows], self._best())

    def _tight_ones(self, rows: Rows) -> Mask:
        shown: dict[int, float] = {}
        losses = np.array([[loss] for loss, _, _ in self._tight]).reshape(-1, 1)
        chances = np.array([chance for _, chance, _ in self._tight])
        values = worth(losses, chances, self._best()).tolist()
        for (*_, row), value in zip(self._tight, values, strict=True):
            layout = int(self._layouts[row])
            shown[layout] = max(shown.get(layout, 0.0), value)
        least = sorted(shown.values())[-SHOWN_TIGHT] if len(shown) >= SHOWN_TIGHT else 0.0
        beat = np.full(int(self._layouts.max(initial=0)) + 1, max(least, 0.0))
        for layout, most in shown.items():
            beat[layout] = max(beat[layout], most)
        value = self._worth(rows)
        return ~self._may_fit[rows] & (value > beat[self._layouts[rows]])

    def _simple(self, rows: Rows) -> Mask:
        best = self.best
        if best is None:
            return np.zeros(len(rows), dtype=np.bool_)
        most = best + NEARLY_BEST * abs(best)
        known = [(int(self._switches[r]), loss) for loss, _, r in self._fits if loss <= most]
        fewest, loss = min(known)
        switches = self._switches[rows]
        fewer = (switches < fewest) | (switches == fewest) & (self._loss[rows] < loss)
        mask: Mask = self._may_fit[rows] & (self._loss[rows] <= most) & fewer
        return mask

    def _ahead(self, rows: Rows, of: Floats) -> Mask:
        """Which rows may be better than losses ``of``, by more than ``epsilon``."""
        reach = np.where(np.isfinite(of), of * (1 - self._epsilon * np.sign(of)), of)
        mask: Mask = self._loss[rows] < reach
        return mask
