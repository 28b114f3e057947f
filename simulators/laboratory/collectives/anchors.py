"""What would a few figures of a cluster's own tell of its collectives?

One collective, timed at a few sizes within a node and once between nodes: how far a fit to other
clusters is off there, log-log between the sizes, corrects everything else that cluster runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from trainscout.simulators.laboratory.collectives.least_squares import Fit, Row, predict_us

KIB, MIB = 2**10, 2**20
FIGURES = {
    "one_figure": (256 * MIB,),
    "two_figures": (MIB, 256 * MIB),
    "three_figures": (8 * KIB, MIB, 256 * MIB),
    "five_figures": (8 * KIB, 128 * KIB, MIB, 16 * MIB, 256 * MIB),
}
"""Sizes in bytes, each within a node and once between nodes."""


def anchored_errors(result: Fit, rows: Sequence[Row], sizes: Sequence[int]) -> dict[int, float]:
    """Absolute relative error of each of a cluster's rows, by its place among them.

    ``result`` was fitted to other clusters. Rows that were told from are not among the answers.
    """
    errors: dict[int, float] = {}
    for between in (False, True):
        members = [place for place, row in enumerate(rows) if (row.nodes > 1) == between]
        if not members:
            continue
        offs = {
            place: math.log(predict_us(result, rows[place]) / rows[place].time_us)
            for place in members
        }
        anchors = {_anchor(rows, members, size) for size in sizes}
        known = sorted((math.log2(rows[place].size_bytes), offs[place]) for place in anchors)
        at, off = zip(*known, strict=True)
        for place in set(members) - anchors:
            corrected = offs[place] - np.interp(math.log2(rows[place].size_bytes), at, off)
            errors[place] = abs(math.expm1(corrected))
    return errors


def _anchor(rows: Sequence[Row], members: Sequence[int], size: int) -> int:
    """The row nearest to a size, of what was timed most often; on the fewest nodes."""
    often: dict[object, int] = defaultdict(int)
    for place in members:
        often[rows[place].net_key or rows[place].node_key] += 1

    def distance(place: int) -> tuple[float, int, int, int]:
        row = rows[place]
        apart = abs(math.log2(row.size_bytes / size))
        return apart, -often[row.net_key or row.node_key], row.nodes, place

    return min(members, key=distance)
