"""Straight lines are told from measurements, by the digits that were printed."""

from dataclasses import replace

import numpy as np

from tests.simulators.laboratory.published.runs import RUN
from trainscout.simulators.laboratory.published.published import PUBLISHED_RUNS
from trainscout.simulators.laboratory.published.reading.rows import read_rows
from trainscout.simulators.laboratory.published.regularity import (
    extrapolated_sources,
    mark_extrapolated,
)


def family(noise, decimals=6, source="Somebody 2024", layers=(8, 16, 24, 32)):
    wander = np.random.default_rng(0).normal(1, noise, len(layers))
    return [
        replace(
            RUN,
            id=f"{source} {count}",
            source=source,
            num_layers=count,
            measured_iter_s=round(float((0.31 + 0.0721 * count) * factor), decimals),
        )
        for count, factor in zip(layers, wander, strict=True)
    ]


def test_times_on_a_line_to_parts_per_million_were_not_measured():
    drawn, timed = family(1e-6, source="Ruler 2024"), family(3e-3, source="Clock 2024")
    assert extrapolated_sources(drawn + timed) == {"Ruler 2024"}
    marked = mark_extrapolated(drawn + timed)
    assert [row.extrapolated for row in marked] == [True] * 4 + [False] * 4


def test_rounded_times_and_short_families_tell_nothing():
    assert not extrapolated_sources(family(0, decimals=3))
    assert not extrapolated_sources(family(0, layers=(8, 16, 24)))


def test_of_the_published_rows_one_sweep_alone_is_extrapolated():
    found = extrapolated_sources(read_rows(PUBLISHED_RUNS))
    assert found == {"vTrain single-node sweep"}
