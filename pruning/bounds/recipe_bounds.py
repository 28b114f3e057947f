"""Lower bounds of every recipe of a table; ``pruning.bounds`` says why they are admissible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from trainscout.pruning.bounds.columns import PASS_FIELDS, ROUNDING, Columns, Floats, Ints
from trainscout.pruning.bounds.step_end import EndPricer
from trainscout.pruning.launchable import JobOf
from trainscout.pruning.recipe_table import Column, RecipeTable
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.uncertainty.calibration import Calibration, factors_of
from trainscout.simulators.predictor.uncertainty.posterior import RECIPE_TRAITS, traits_of
from trainscout.simulators.predictor.workload.communicators import communicators

if TYPE_CHECKING:
    from trainscout.simulators.predictor.kernels.measured import MeasuredTable
T = TypeVar("T")


@dataclass(frozen=True)
class RecipeBounds:
    """Bounds, shape (rows,): ``step_time_s`` in seconds; ``memory_bytes`` as
    ``Memory.peak_reserved_bytes`` counts them; ``used_bytes`` with what is outside the allocator,
    to be compared with the capacity."""

    step_time_s: Floats
    memory_bytes: Ints
    used_bytes: Ints


class Bounds:
    """Bounds for the recipes of one declared question.

    Args:
        job_of: completes a recipe to its job.
        calibration, measured: what the simulator goes by.
        congested: communication may take longer than its price, and then slows less beside it.
    """

    def __init__(
        self,
        job_of: JobOf,
        calibration: Calibration | None = None,
        measured: MeasuredTable | None = None,
        *,
        congested: bool = False,
    ) -> None:
        self.job, self.congested = job_of, congested
        self._calibration, self._measured = calibration, measured
        self.ends = EndPricer()
        self._known: dict[tuple[Any, ...], Any] = {}

    def __call__(self, table: RecipeTable) -> RecipeBounds:
        """The bounds of launchable recipes."""
        memory_bytes, used_bytes = self.sizes(table)
        return RecipeBounds(self.step_time_s(table), memory_bytes, used_bytes)

    def sizes(self, table: RecipeTable) -> tuple[Ints, Ints]:
        """The bounds of memory alone, which price nothing: ``memory_bytes``, ``used_bytes``."""
        memory_bytes, used_bytes = np.zeros((2, len(table)), dtype=np.int64)
        for rows, columns in self._by_framework(table):
            memory_bytes[rows], used_bytes[rows] = columns.sizes()
        return memory_bytes, used_bytes

    def step_time_s(self, table: RecipeTable) -> Floats:
        """The bounds of the step time alone."""
        step_time_s = np.zeros(len(table))
        for rows, columns in self._by_framework(table):
            step_time_s[rows] = columns.step_time_s()
        return self._whole(step_time_s, table)

    def passes(self, table: RecipeTable) -> tuple[Ints, Floats]:
        """What passes alone say, below the bounds of all recipes that differ only in fields that
        ``passes_read`` leaves out: bytes that activations take, and seconds of the step."""
        held_bytes, step_time_s = np.zeros(len(table), dtype=np.int64), np.zeros(len(table))
        for rows, columns in self._by_framework(table):
            held_bytes[rows], step_time_s[rows] = columns.passes_alone()
        return held_bytes, self._whole(step_time_s, table)

    def least_step_s(self, table: RecipeTable) -> Floats:
        """Below ``passes`` and with far fewer prices: the passes without recomputation, which only
        adds operations to theirs."""
        plain = {"recompute": "none", "recompute_modules": None, "recompute_layers": None}
        columns = {name: each for name, each in table.columns.items() if name not in plain}
        none = np.zeros(len(table), dtype=np.int8)
        columns |= {name: Column((value,), none) for name, value in plain.items()}
        columns["recompute_taper"] = Column((0,), none)
        plainer = RecipeTable(columns, len(table))
        step_time_s = np.zeros(len(table))
        for rows, each in self._by_framework(plainer):
            step_time_s[rows] = each.passes_end_s() * (1 - ROUNDING)
        return self._whole(step_time_s, table)

    def passes_read(self) -> set[str]:
        """The fields that ``passes`` reads of recipes."""
        return {*PASS_FIELDS, *(() if self._calibration is None else RECIPE_TRAITS)}

    def _whole(self, step_time_s: Floats, table: RecipeTable) -> Floats:
        """Whole steps: as a calibration scales them, the same for recipes of the same traits, and
        no shorter than what data loaders take."""
        if self._calibration is not None:
            found = table.distinct(RECIPE_TRAITS)
            traits = [traits_of(self.job(table[int(row)])) for row in found.first]
            scales: Floats = found.spread(np.array(self._calibration.scales_of(traits)))
            step_time_s = step_time_s * scales
        found = table.distinct(("tp", "pp", "cp"))
        loading_s = [self.job(table[int(row)]).loading_s for row in found.first]
        fed_s: Floats = np.maximum(step_time_s, found.spread(np.array(loading_s)))
        return fed_s

    def _by_framework(self, table: RecipeTable) -> Iterator[tuple[Ints, Columns]]:
        """Software differs in what the columns of all recipes have in common."""
        frameworks = table.distinct(("framework",))
        for number in range(len(frameworks.first)):
            rows = np.flatnonzero(frameworks.of == number)
            yield rows, Columns(self, table.take(rows))

    def pricer(self, job: Job) -> Pricer:
        """Prices under a job's groups and software: one for all jobs that have the same."""
        factors, groups = factors_of(self._calibration), communicators(job)
        return self.once(
            "pricer",
            (job.framework, job.network, *groups.values()),
            lambda: Pricer.of(job, groups, factors, self._measured),
        )

    def knows(self, what: str, key: tuple[Any, ...]) -> bool:
        """Whether ``once`` was asked for it."""
        return (what, *key) in self._known

    def once(self, what: str, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """What ``make`` gave the first time that ``key`` was asked for."""
        whole = (what, *key)
        value: T | None = self._known.get(whole)
        if value is None:
            value = self._known[whole] = make()
        return value
