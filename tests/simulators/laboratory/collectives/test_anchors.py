"""A few figures of a cluster's own correct a fit to others, between and beyond them."""

from dataclasses import dataclass

import pytest

from trainscout.simulators.laboratory.collectives.fit import SIZES, anchored_errors
from trainscout.simulators.predictor.collectives.measured import Figure
from trainscout.simulators.predictor.workload.ir import Communicator


@dataclass(frozen=True)
class Call:
    """What of a measurement is looked at."""

    kind: str
    size_bytes: int
    communicator: Communicator

    @property
    def nodes(self) -> int:
        return self.communicator.nodes


def calls(start_us, growth, kind="all_reduce", ranks=8, nodes=1):
    """Calls that a fit has at 10 us and a microsecond a MiB, and what they took."""
    group = Communicator("own", ranks, ranks // nodes, nodes)
    sizes = [SIZES[0] * 2**power for power in range(17)]
    return [
        (
            Call(kind, size, group),
            Figure(size, 10.0, 10.0 + size / 2**20, start_us + growth * size / 2**20),
        )
        for size in sizes
    ]


def most(own, told):
    errors = anchored_errors(own, told)
    return len(errors), max(error for _, error in errors)


def test_a_fit_whose_bytes_alone_are_off_needs_one_large_figure():
    number, error = most(calls(10.0, 1.5), "one_size")
    assert number == 16
    assert error == pytest.approx(0, abs=1e-12)


def test_one_whose_calls_start_later_needs_a_short_one_besides():
    own = calls(25.0, 1.5)
    assert most(own, "one_size")[1] > 0.3
    assert most(own, "two_sizes") == (15, pytest.approx(0, abs=1e-12))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"nodes": 2}, "two_sizes"),
        ({"ranks": 2}, "two_sizes"),
        ({"kind": "all_gather"}, "two_sizes"),
        ({"nodes": 2}, "swept_by_nodes"),
    ],
)
def test_calls_that_are_told_apart_have_their_own(other, told):
    own = [*calls(25.0, 1.5), *calls(12.0, 3.0, **other)]
    number, error = most(own, told)
    assert number == (30 if told == "two_sizes" else 16)
    assert error == pytest.approx(0, abs=1e-9)


def test_numbers_of_nodes_are_told_apart_where_each_was_measured():
    own = [*calls(25.0, 1.5, nodes=2), *calls(12.0, 3.0, nodes=4)]
    assert most(own, "swept")[1] > 0.3
    assert most(own, "swept_by_nodes")[1] == pytest.approx(0, abs=1e-9)
