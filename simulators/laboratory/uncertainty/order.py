"""Do leads that are no ties name the faster layout? Counted on publications that were left out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.uncertainty.features import similarity, unlike
from trainscout.simulators.predictor.uncertainty.interval import LEVEL
from trainscout.simulators.predictor.uncertainty.table import ResidualTable, quantiles
from trainscout.simulators.predictor.uncertainty.ties import layout_pairs, pair_weights

APART = (0.05, 0.1, 0.2)
"""By which shares of the shorter step layouts that were called tied differed after all."""
_LIKELY = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


@dataclass(frozen=True)
class Likely:
    """Pairs whose predicted order is right with a probability of ``least`` to ``most``: what was
    ``said`` in the mean, and how many ``came`` in it."""

    least: float
    most: float
    pairs: int
    publications: int
    said: float
    came: float


@dataclass(frozen=True)
class Order:
    """Pairs of layouts in sweeps of blind tests, judged by other publications alone.

    Shares are means over publications: ``off`` of predicted differences that err by more than the
    tie's limit; ``told`` of pairs that are no tie, ``right`` of these in the predicted order;
    ``apart`` of ties that differ by more than ``APART``.
    """

    pairs: int
    publications: int
    off: float
    told: float
    right: float
    apart: Mapping[str, float]
    likely: tuple[Likely, ...]

    def to_dict(self) -> dict[str, Any]:
        """As the table's header has it."""
        return asdict(self) | {"likely": [asdict(each) for each in self.likely]}


def order(table: ResidualTable) -> Order:
    """Whether pairs of blind tests come in the predicted order."""
    pairs = layout_pairs(table)
    blind = np.flatnonzero(table.blind_tests[pairs.first] > 0)
    predicted = np.log(table.tflops)
    leads = predicted[pairs.first] - predicted[pairs.second]
    measured = leads - (table.residuals[pairs.first] - table.residuals[pairs.second])
    limits, probabilities = np.zeros(len(leads)), np.zeros(len(leads))
    for pair in blind:
        faster = pairs.first[pair] if leads[pair] > 0 else pairs.second[pair]
        weights = pair_weights(table, _near(table, int(faster)))
        limits[pair] = quantiles(pairs.errors, weights, [LEVEL])[0] * pairs.spread[pair]
        below = np.cumsum(weights) - weights / 2
        held = np.interp(abs(leads[pair]) / pairs.spread[pair], pairs.errors, below)
        # An error beyond the lead lies on either side of it with the same probability.
        probabilities[pair] = (1 + held) / 2
    sources = table.sources[pairs.first]

    def mean(values: NDArray[np.generic], of: NDArray[np.bool_]) -> float:
        each = [values[of & (sources == source)].mean() for source in np.unique(sources[of])]
        return round(float(np.mean(each)), 4) if each else 0.0

    counted = np.isin(np.arange(len(leads)), blind)
    tied, right = np.abs(leads) <= limits, leads * measured > 0
    bands = itertools.pairwise(_LIKELY)
    likely = (
        Likely(
            least,
            most,
            int(found.sum()),
            len(np.unique(sources[found])),
            mean(probabilities, found),
            mean(right, found),
        )
        for least, most in bands
        if (found := counted & (least <= probabilities) & (probabilities < most)).any()
    )
    return Order(
        pairs=len(blind),
        publications=len(np.unique(sources[blind])),
        off=mean(np.abs(leads - measured) > limits, counted),
        told=mean(~tied, counted),
        right=mean(right, counted & ~tied),
        apart={
            f"{share:.0%}": mean(np.expm1(np.abs(measured)) > share, counted & tied)
            for share in APART
        },
        likely=tuple(likely),
    )


def _near(table: ResidualTable, row: int) -> NDArray[np.float64]:
    """Similarity of all runs to one, none to those of its own publication."""
    one = slice(row, row + 1)
    apart = unlike(table.kinds, table.kinds[:, one])
    near = np.maximum(similarity(apart, table.sizes, table.sizes[:, one]), 1e-150)
    return np.where(table.sources != table.sources[row], near, 0.0)
