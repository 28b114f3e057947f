"""What would a few figures of a cluster's own tell of its collectives?

Calls timed at two sizes say how much later a cluster's calls start than a fit to others has it,
and how many times as long what of them grows with the size takes
(``predictor.collectives.measured.corrected_s``). The fewer calls one pair of sizes speaks for, the
nearer it is: told apart by where they run (within a node, on the fewest nodes), by the number of a
node's GPUs, and by collective.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from trainscout.simulators.laboratory.collectives.least_squares import Fit, Row, predict_us, row_of
from trainscout.simulators.laboratory.collectives.measurements import Measurement
from trainscout.simulators.predictor.collectives.measured import Figure, corrected_s

SIZES = (8 << 10, 256 << 20)
"""Bytes; the measured sizes nearest to them are told."""


def _place(call: Measurement) -> tuple[object, ...]:
    return (call.communicator.nodes > 1,)


def _gpus(call: Measurement) -> tuple[object, ...]:
    """Fewer GPUs of one node have their own figures; of several nodes, all."""
    within = call.communicator.nodes == 1
    return (within, call.communicator.size if within else 0)


TOLD: dict[str, tuple[Callable[[Measurement], tuple[object, ...]], tuple[int, ...]]] = {
    "large": (_place, SIZES[1:]),
    "two_sizes": (_place, SIZES),
    "two_sizes_by_gpus": (_gpus, SIZES),
    "two_sizes_by_gpus_and_kind": (lambda call: (call.kind, *_gpus(call)), SIZES),
}
"""By name: which calls share their figures, and the sizes that they have."""


def figures(result: Fit, calls: Sequence[Measurement]) -> list[tuple[Measurement, Figure]]:
    """A cluster's calls beside what ``result``, fitted to others, says of them."""
    found = []
    for call in calls:
        least = _one_byte(replace(call, id="", size_bytes=1, seconds=1.0))
        least_s, price_s = (predict_us(result, row) * 1e-6 for row in (least, row_of(call)))
        found.append((call, Figure(least_s, price_s, call.seconds)))
    return found


@functools.lru_cache(maxsize=4096)
def _one_byte(call: Measurement) -> Row:
    return row_of(call)


def anchored_errors(
    own: Sequence[tuple[Measurement, Figure]], told: str
) -> list[tuple[Measurement, float]]:
    """Absolute relative error of each of a cluster's calls but those that were told from."""
    shares, sizes = TOLD[told]
    groups: dict[object, list[tuple[Measurement, Figure]]] = defaultdict(list)
    for call, figure in own:
        groups[shares(call)].append((call, figure))
    errors: list[tuple[Measurement, float]] = []
    for members in groups.values():
        anchors = _anchors(members, sizes)
        told_from = (anchors[0][1], anchors[-1][1])
        known = [call for call, _ in anchors]
        for call, figure in members:
            if call not in known:
                found_s = corrected_s(figure, *told_from)
                errors.append((call, abs(found_s / figure.measured_s - 1)))
    return errors


def _anchors(
    members: Sequence[tuple[Measurement, Figure]], sizes: Sequence[int]
) -> list[tuple[Measurement, Figure]]:
    """One test at the sizes nearest to those asked for: an all-reduce where there is one, on the
    fewest nodes and the most GPUs of them."""

    def test(call: Measurement) -> tuple[object, ...]:
        ranks = call.communicator.size
        return call.kind != "all_reduce", call.communicator.nodes, -ranks, call.kind

    chosen = min(test(call) for call, _ in members)
    same = [each for each in members if test(each[0]) == chosen]
    return [min(same, key=lambda each: abs(math.log(each[0].size_bytes / size))) for size in sizes]
