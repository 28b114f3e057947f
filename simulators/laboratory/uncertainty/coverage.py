"""Do error bars hold what they say? Counted on runs that were left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.uncertainty.features import LAUNCH_BOUND, similarity, unlike
from trainscout.simulators.predictor.uncertainty.interval import LEVEL, interval
from trainscout.simulators.predictor.uncertainty.table import ResidualTable, source_balanced

LEFT_OUT: Mapping[str, str] = {
    "publication": "a publication",
    "framework": "a framework",
    "gpu": "a GPU",
    "cluster": "a cluster",
    "architecture": "an architecture",
    "host_bound": "a publication, its launch-bound runs",
    "other_vendor": "a publication, its runs on GPUs of rarer vendors",
    "next_test": "a test from the fifth on, and those after it",
}
"""What is left out, by the name of its share in ``Coverage``."""
_FIRST_TOLD = 5

Booleans = NDArray[np.bool_]
Groups = NDArray[np.int64]


@dataclass(frozen=True)
class Coverage:
    """How often intervals of ``level`` hold the ``n`` runs of blind tests, by ``publications``.

    Runs in view tell of others, and are not counted: the predictor was made in view of them.
    Every publication counts alike. ``inside``: shares by ``LEFT_OUT``, without those that no run
    tells. ``faster`` and ``slower``: the shares beyond either end with publications left out.
    ``width``: the median then of the high end over the low end, less one, and ``width_in_view``
    that of runs in view.
    """

    level: float
    n: int
    publications: int
    inside: Mapping[str, float]
    faster: float
    slower: float
    width: float
    width_in_view: float

    def to_dict(self) -> dict[str, float]:
        """As the table's header has it, ``inside`` by its names."""
        figures = dict(vars(self))
        return {**figures.pop("inside"), **figures}


def coverage(table: ResidualTable, level: float = LEVEL) -> Coverage:
    """How often runs of blind tests are inside intervals made without them."""
    tests, sources, residuals = table.blind_tests, table.sources, table.residuals
    blind = tests > 0
    everything = np.arange(len(tests))

    def without(groups: Groups) -> NDArray[np.float64]:
        return _ends(table, everything, groups[:, None] != groups, level)

    def holds(ends: NDArray[np.float64]) -> Booleans:
        held: Booleans = (ends[0] <= residuals) & (residuals <= ends[1])
        return held

    kinds = {kind: table.column(kind) for kind in ("framework", "gpu", "architecture")}
    kinds["cluster"] = table.clusters
    inside = {
        kind: _mean_by(sources[blind], holds(without(groups))[blind])
        for kind, groups in kinds.items()
        if len(np.unique(groups)) > 1
    }
    low, high = ends = without(sources)
    held, vendors = holds(ends), table.column("vendor")
    most = np.bincount(vendors, weights=table.even).argmax()
    counted = {
        "publication": blind,
        "host_bound": blind & (table.errors[1] > LAUNCH_BOUND),
        "other_vendor": blind & (vendors != most),
    }
    inside |= {name: _mean_by(sources[of], held[of]) for name, of in counted.items() if of.any()}
    next_ones = np.flatnonzero(tests >= _FIRST_TOLD)
    if len(next_ones):
        told = tests < tests[next_ones, None]
        ends = _ends(table, next_ones, told, level)
        found = residuals[next_ones]
        inside["next_test"] = _mean_by(sources[next_ones], (ends[0] <= found) & (found <= ends[1]))
    widths = np.expm1(high - low)
    return Coverage(
        level=level,
        n=int(blind.sum()),
        publications=len(np.unique(sources[blind])),
        inside={name: inside[name] for name in LEFT_OUT if name in inside},
        faster=_mean_by(sources[blind], (residuals < low)[blind]),
        slower=_mean_by(sources[blind], (residuals > high)[blind]),
        width=float(np.median(widths[blind])),
        width_in_view=float(np.median(widths[~blind])) if not blind.all() else 0.0,
    )


def _ends(table: ResidualTable, rows: Groups, told: Booleans, level: float) -> NDArray[np.float64]:
    """Ends of the intervals of some rows, shape (2, rows), by the runs that each is ``told``,
    shape (rows, n)."""
    found = []
    for row, known in zip(rows, told, strict=True):
        one = slice(row, row + 1)
        apart = unlike(table.kinds, table.kinds[:, one])
        near = similarity(apart, table.sizes, table.sizes[:, one])
        weights = source_balanced(np.where(known, np.maximum(near, 1e-300), 0.0), table.sources)
        found.append(interval(table, *weights, table.errors[:, row], level))
    return np.array(found).T


def _mean_by(groups: Groups, values: Booleans) -> float:
    """Mean over groups of the share of each that holds."""
    return float(np.mean([values[groups == group].mean() for group in np.unique(groups)]))
