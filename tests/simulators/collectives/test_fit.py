"""The least squares recover what they should, and what was written covers what is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.collectives import fit as command
from simulators.collectives import least_squares as fit
from simulators.collectives.cost import options_of
from simulators.collectives.execution import net_terms, node_terms
from simulators.collectives.graph import wiring_of
from simulators.collectives.p2p import all_to_all_terms
from simulators.collectives.transport import net_coefficients, node_coefficients
from simulators.job import FABRICS, Gpu
from tests.simulators.collectives import machines as m
from tests.simulators.collectives.machines import MIB, cluster, group

TRUTH = {"launch": 9.0, "hop": 1.2, "stream": 1.1}
PRIOR = {"launch": 6.6, "hop": 0.6, "stream": 1.0}


def ring_rows() -> list[dict[str, float]]:
    return [
        {"launch": 1.0, "hop": hops, "stream": stream}
        for hops in (2.0, 6.0, 14.0)
        for stream in (0.1, 1.0, 10.0, 100.0, 1000.0)
    ]


def test_exact_data_give_back_their_coefficients() -> None:
    rows = ring_rows()
    times = np.array([fit.weigh(row, TRUTH) for row in rows])
    found = fit.solve(rows, times, np.zeros(len(rows)), PRIOR)
    assert found == pytest.approx(TRUTH, rel=0.02)


def test_one_wild_measurement_does_not_move_the_rest() -> None:
    rows = ring_rows() * 3
    times = np.array([fit.weigh(row, TRUTH) for row in rows])
    times[4] *= 20
    found = fit.solve(rows, times, np.zeros(len(rows)), PRIOR)
    assert found == pytest.approx(TRUTH, rel=0.05)


def test_a_hop_is_never_free() -> None:
    # Two ranks only: launch and hop cannot be told apart.
    rows = [{"launch": 1.0, "hop": 2.0, "stream": stream} for stream in (0.1, 1.0, 10.0)]
    times = np.array([3.0 + row["stream"] for row in rows])
    found = fit.solve(rows, times, np.zeros(len(rows)), PRIOR)
    assert found["hop"] >= fit.LEAST_HOP * PRIOR["hop"]


def test_offsets_are_taken_off_first() -> None:
    rows = ring_rows()
    offsets = np.full(len(rows), 50.0)
    times = offsets + np.array([fit.weigh(row, TRUTH) for row in rows])
    assert fit.solve(rows, times, offsets, PRIOR)["stream"] == pytest.approx(1.1, rel=0.05)


@pytest.mark.parametrize("fabric", [f for f in FABRICS if f != "none"])
@pytest.mark.parametrize("gpu", [m.V100, m.A100, m.A100_PCIE, m.H100, m.B200])
@pytest.mark.parametrize("per_node", [1, 8])
def test_every_option_has_coefficients(fabric: str, gpu: Gpu, per_node: int) -> None:
    wiring = wiring_of(group(per_node, 4), gpu, cluster(4, 8, version="2.27", fabric=fabric))
    hardware = wiring.generation if wiring.link == "nvlink" else "pci"
    for kind in ("all_reduce", "all_gather", "broadcast"):
        for option in options_of(kind, wiring):
            node = node_coefficients(hardware, option.algorithm, option.protocol)
            net = net_coefficients(fabric, option.algorithm, option.protocol)
            assert set(node_terms(kind, MIB, option, wiring)) <= set(node.terms)
            assert set(net_terms(kind, MIB, option, wiring)) <= set(net.terms)
    inside, between = all_to_all_terms(MIB, wiring)
    assert set(inside) <= set(node_coefficients(hardware, "alltoall", "simple").terms)
    assert set(between) <= set(net_coefficients(fabric, "alltoall", "simple").terms)


def test_borrowed_coefficients_claim_no_measurements() -> None:
    assert node_coefficients("volta", "ring", "simple").rows == 0
    assert net_coefficients("ethernet", "ring", "simple").rows == 0
    assert node_coefficients("hopper", "ring", "simple").rows > 100


def test_clusters_and_bands_count_alike_in_the_averages() -> None:
    cells = {("a", "<=16KiB"): 0.1, ("b", "<=16KiB"): 0.3, ("b", ">64MiB"): 0.5}
    assert command.average(cells) == {
        "clusters": 2,
        "by_size_band": {"<=16KiB": 0.2, ">64MiB": 0.5},
        "all": 0.3,
    }
