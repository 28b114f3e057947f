"""NCCL's cost model against figures that NCCL itself printed and that follow by hand."""

from __future__ import annotations

import pytest

from tests.simulators.predictor.collectives import machines as m
from tests.simulators.predictor.collectives.machines import GIB, KIB, MIB, cluster, group
from trainscout.simulators.predictor.collectives.cost import Option, choose, options_of
from trainscout.simulators.predictor.collectives.graph import wiring_of
from trainscout.simulators.predictor.collectives.tuning_tables import (
    parse_version,
    tree_correction,
)
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import Communicator

EIGHT_H100 = cluster(1, 8)
THREE_NODES = cluster(3, 8, gbps=200)
FOUR_NODES = cluster(4, 8, version="2.26.2")
TEN_NODES = cluster(10, 8, version="2.29.2")
SNELLIUS = cluster(2, 4, 4, 200, "2.22.3", cpu="amd", nvswitch=False)
AZURE_A100 = cluster(16, 8, 8, 200, "2.10.3", cpu="amd")
ALPS = cluster(16, 4, 4, 200, "2.23.4", fabric="slingshot", cpu="arm", nvswitch=False)


def chosen(
    kind: str, size: int, gpu: Gpu, machine: Cluster, members: Communicator
) -> tuple[str, str, float]:
    option = choose(kind, size, wiring_of(members, gpu, machine))
    return option.algorithm, option.protocol, option.time_us(size)


@pytest.mark.parametrize(
    ("size", "choice", "printed_us"),
    [
        (256, ("tree", "ll"), 25.229528),
        (512, ("tree", "ll"), 25.259054),
        (64 * KIB, ("tree", "ll"), 37.798233),
        (128 * KIB, ("tree", "ll128"), 51.603912),
        (512 * MIB, ("ring", "simple"), 5679.147949),
        (GIB, ("ring", "simple"), 11038.536133),
    ],
)
def test_times_printed_by_nccl_on_three_h100_nodes(
    size: int, choice: tuple[str, str], printed_us: float
) -> None:
    # NVIDIA/nccl issue 1453: 3 x 8 H100, Intel hosts, channels of 24 GB/s. NCCL computes in
    # single precision, hence the tolerance of a few units in the seventh digit.
    *found, time_us = chosen("all_reduce", size, m.H100, THREE_NODES, group(8, 3))
    assert tuple(found) == choice
    assert time_us == pytest.approx(printed_us, rel=2e-7)


@pytest.mark.parametrize(
    ("kind", "algorithm", "protocol", "latency_us", "bandwidth_gbs"),
    [
        ("all_reduce", "tree", "ll", 16.8, 0.5),
        ("all_reduce", "tree", "simple", 36.4, 1.9),
        ("all_reduce", "ring", "ll", 16.6, 1.2),
        ("all_reduce", "ring", "simple", 36.4, 2.4),
        ("all_gather", "ring", "ll", 11.6, 2.4),
        ("all_gather", "ring", "simple", 22.4, 4.8),
        ("all_gather", "pat", "simple", 17.6, 3.6),
    ],
)
def test_table_printed_by_nccl_over_sockets(
    kind: str, algorithm: str, protocol: str, latency_us: float, bandwidth_gbs: float
) -> None:
    # NCCL 2.29.7, two hosts of one RTX 5090 at 2.4 GB/s; NCCL prints one decimal.
    sockets = cluster(2, 1, 1, 2.4 * 8, "2.29.7", fabric="ethernet")
    option = find(
        options_of(kind, wiring_of(group(1, 2), m.RTX5090, sockets)), algorithm, protocol
    )
    assert round(option.latency_us, 1) == latency_us
    assert round(option.bandwidth_gbs, 1) == bandwidth_gbs


def find(options: tuple[Option, ...], algorithm: str, protocol: str) -> Option:
    return next(o for o in options if (o.algorithm, o.protocol) == (algorithm, protocol))


def test_ring_and_nvls_of_64_mib_by_hand() -> None:
    # Ring Simple: 56.0 us + 67.1 MB / 205.7 GB/s; LL128: 40.6 + / 189.3; NVLS: 25 + / 266.7.
    options = options_of("all_reduce", wiring_of(group(8), m.H100, EIGHT_H100))
    times = {(o.algorithm, o.protocol): o.time_us(64 * MIB) for o in options}
    assert times["ring", "simple"] == pytest.approx(382.2, abs=0.05)
    assert times["ring", "ll128"] == pytest.approx(395.2, abs=0.1)
    assert times["nvls", "simple"] == pytest.approx(276.7, abs=0.05)


@pytest.mark.parametrize(
    ("kind", "gpu", "machine", "members", "expected"),
    [
        (
            "all_reduce",
            m.H100,
            cluster(1, 8, version="2.29.2"),
            group(8),
            {
                KIB: ("ring", "ll", 15.0),
                64 * KIB: ("ring", "ll", 15.8),
                MIB: ("ring", "ll", 28.0),
                4 * MIB: ("nvls", "simple", 40.4),
                16 * MIB: ("nvls", "simple", 86.7),
                64 * MIB: ("nvls", "simple", 271.7),
                256 * MIB: ("nvls", "simple", 1012),
            },
        ),
        (
            "all_gather",
            m.H100,
            cluster(1, 8, version="2.29.2"),
            group(8),
            {
                KIB: ("ring", "ll", 10.8),
                MIB: ("ring", "ll", 17.3),
                4 * MIB: ("ring", "ll", 36.8),
                16 * MIB: ("ring", "ll128", 71.6),
                64 * MIB: ("ring", "simple", 195.3),
                256 * MIB: ("ring", "simple", 684.6),
            },
        ),
        (
            "all_reduce",
            m.H100,
            FOUR_NODES,
            group(8, 4),
            {
                KIB: ("tree", "ll", 35.3),
                64 * KIB: ("tree", "ll", 47.8),
                MIB: ("tree", "ll128", 83.2),
                4 * MIB: ("nvls_tree", "simple", 109),
                16 * MIB: ("nvls_tree", "simple", 193),
                64 * MIB: ("nvls_tree", "simple", 528),
                256 * MIB: ("ring", "simple", 1841),
                GIB: ("ring", "simple", 6175),
                8 * GIB: ("ring", "simple", 46627),
            },
        ),
        (
            "all_reduce",
            m.H100,
            cluster(2, 8, version="2.26.2"),
            group(8, 2),
            {
                KIB: ("tree", "ll", 25.3),
                64 * KIB: ("tree", "ll", 31.8),
                MIB: ("nvls_tree", "simple", 56.5),
                64 * MIB: ("nvls_tree", "simple", 277),
                GIB: ("nvls_tree", "simple", 3632),
            },
        ),
        (
            "all_reduce",
            m.H100,
            TEN_NODES,
            group(8, 10),
            {
                256 * MIB: ("nvls_tree", "simple", 1623),
                GIB: ("nvls_tree", "simple", 6041),
            },
        ),
        (
            "reduce_scatter",
            m.H100,
            TEN_NODES,
            group(8, 10),
            {256 * MIB: ("ring", "ll128", 1086), GIB: ("ring", "simple", 3318)},
        ),
        (
            "reduce_scatter",
            m.H100,
            SNELLIUS,
            group(4, 2),
            {
                MIB: ("ring", "ll128", 40.4),
                4 * MIB: ("ring", "ll128", 71.6),
                16 * MIB: ("ring", "ll128", 196.2),
                64 * MIB: ("ring", "simple", 670),
                GIB: ("ring", "simple", 9845),
            },
        ),
        (
            "all_reduce",
            m.A100,
            AZURE_A100,
            group(8, 16),
            {
                64 * KIB: ("tree", "ll", 63),
                MIB: ("tree", "ll128", 116),
                16 * MIB: ("tree", "ll128", 369),
                64 * MIB: ("tree", "ll128", 1207),
                GIB: ("ring", "ll128", 13899),
            },
        ),
        (
            "all_reduce",
            m.H100,
            ALPS,
            group(4, 16),
            {
                64 * KIB: ("tree", "ll", 63),
                GIB: ("ring", "simple", 23077),
            },
        ),
    ],
)
def test_choices_and_estimates_on_public_machines(
    kind: str,
    gpu: Gpu,
    machine: Cluster,
    members: Communicator,
    expected: dict[int, tuple[str, str, float]],
) -> None:
    for size, (algorithm, protocol, time_us) in expected.items():
        *choice, estimate = chosen(kind, size, gpu, machine, members)
        assert tuple(choice) == (algorithm, protocol), size
        assert estimate == pytest.approx(time_us, rel=4e-3), size


def test_forced_tree_on_two_h800_nodes() -> None:
    # NCCL's printed algorithm bandwidth of a forced Tree: 68.8 GB/s.
    options = options_of("all_reduce", wiring_of(group(8, 2), m.H800, cluster(2, 8)))
    assert find(options, "tree", "simple").bandwidth_gbs == pytest.approx(68.8, abs=0.05)


def test_nvls_tree_was_recalibrated_in_2_28() -> None:
    wiring = wiring_of(group(8, 2), m.H100, cluster(2, 8, version="2.28"))
    option = find(options_of("all_reduce", wiring), "nvls_tree", "simple")
    assert option.bandwidth_gbs == pytest.approx(246, abs=0.5)


@pytest.mark.parametrize("version", ["2.16", "2.10.3"])
def test_no_nvls_before_2_17(version: str) -> None:
    wiring = wiring_of(group(8), m.H100, cluster(1, 8, version=version))
    assert {o.algorithm for o in options_of("all_reduce", wiring)} == {"ring", "tree"}


def test_no_ll128_over_pcie() -> None:
    wiring = wiring_of(group(2), m.A100_PCIE, cluster(1, 2, nvswitch=False))
    assert "ll128" not in {o.protocol for o in options_of("all_reduce", wiring)}


@pytest.mark.parametrize("text", ["", "2", "two", "2.x", "2.22.3.4", "-2.22"])
def test_malformed_version_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"cluster\.nccl_version"):
        parse_version(text)


@pytest.mark.parametrize(("future", "last"), [("2.99", "2.30"), ("3.0", "2.30"), ("2.8", "2.10")])
def test_unknown_version_uses_the_nearest(future: str, last: str) -> None:
    for machine in (cluster(4, 8, version=future), cluster(1, 8, version=future)):
        nearest = cluster(machine.num_nodes, 8, version=last)
        members = group(8, machine.num_nodes)
        found = options_of("all_reduce", wiring_of(members, m.H100, machine))
        assert found == options_of("all_reduce", wiring_of(members, m.H100, nearest))


def test_tree_correction_ends_at_256_mb() -> None:
    assert tree_correction("simple", 64) == 0.9
    assert tree_correction("ll", 64 * KIB) == 0.6
    assert tree_correction("simple", 256 * MIB) == 0.9
    assert tree_correction("simple", 512 * MIB) == 1.0
    assert tree_correction("simple", 8) == 1.0


@pytest.mark.parametrize(
    ("nodes", "last_ll", "first_tree_simple", "first_ring_simple"),
    [
        # Times of public results on GH200 fall sevenfold where LL ends, and double where the
        # ring's messages become shorter than the tree's.
        (4, MIB, 2 * MIB, 16 * MIB),
        (8, 512 * KIB, MIB, None),
        (16, 256 * KIB, 512 * KIB, 128 * MIB),
        (32, 256 * KIB, 512 * KIB, 256 * MIB),
    ],
)
def test_a_nic_behind_the_cpu_has_no_ll128(
    nodes: int, last_ll: int, first_tree_simple: int, first_ring_simple: int | None
) -> None:
    def choice(size: int) -> tuple[str, str]:
        algorithm, protocol, _ = chosen("all_reduce", size, m.H100, ALPS, group(4, nodes))
        return algorithm, protocol

    assert choice(last_ll)[1] == "ll"
    assert choice(first_tree_simple) == ("tree", "simple")
    if first_ring_simple is not None:
        assert choice(first_ring_simple) == ("ring", "simple")


def test_efa_plugin_forces_simple_before_hopper() -> None:
    machine = cluster(2, 8, 4, 100, fabric="efa")
    assert chosen("all_reduce", KIB, m.A100, machine, group(8, 2))[1] == "simple"
    assert chosen("all_reduce", KIB, m.H100, machine, group(8, 2))[1] == "ll"


def test_tcpx_leaves_rings_and_trees() -> None:
    wiring = wiring_of(group(8, 2), m.H100, cluster(2, 8, fabric="tcpx"))
    found = {(o.algorithm, o.protocol) for o in options_of("all_reduce", wiring)}
    assert found == {(a, p) for a in ("ring", "tree") for p in ("ll128", "simple")}


def test_a_forced_algorithm_is_taken_where_it_runs() -> None:
    wiring = wiring_of(group(8, 2), m.H100, cluster(2, 8))
    assert choose("all_reduce", MIB, wiring, "ring").algorithm == "ring"
    assert choose("all_gather", MIB, wiring, "tree") == choose("all_gather", MIB, wiring)
