"""Collectives measured on one's own cluster, and what calls on other communicators then take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulators.predictor.collectives.machines import (
    A100_PCIE,
    GIB,
    H100,
    KIB,
    MIB,
    cluster,
    group,
)
from trainscout.simulators.predictor.collectives.measured import (
    hop_us,
    interpolated,
    read_measured_collectives,
)
from trainscout.simulators.predictor.collectives.price import price_collective
from trainscout.simulators.predictor.question.cluster import Cluster, MeasuredCollective
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Communicator

HOP_US = 40.0
WIRE_GBS = 250.0


def busbw(nodes: int, size: int = GIB, kind: str = "all_gather") -> float:
    """GB/s of a ring over whole nodes of eight whose hops and wire are HOP_US and WIRE_GBS."""
    laps, ranks = 2 if kind == "all_reduce" else 1, 8 * nodes
    moved = laps * size * (ranks - 1) / ranks
    return moved / (moved / WIRE_GBS + laps * (ranks - 1) * HOP_US * 1e3)


def measured(nodes: int, size: int = GIB, kind: str = "all_gather") -> MeasuredCollective:
    """Undisturbed at ``busbw``, half of it in the mean."""
    high = busbw(nodes, size, kind)
    return MeasuredCollective(kind, nodes, size, high / 2, high, high / 4)


def imperfect(*rows: MeasuredCollective, nodes: int = 64) -> Cluster:
    return replace(cluster(nodes, 8), measured_collectives="own.csv", measured=rows)


CURVE = imperfect(*(measured(nodes) for nodes in (2, 4, 8, 16, 32, 64)))


def seconds(
    on: Cluster,
    size: int,
    ranks: int,
    nodes: int = 1,
    kind: str = "all_gather",
    nvlink_gbs: float = 450.0,
) -> float:
    communicator = group(ranks, nodes, max(1, 8 // ranks) if nodes > 1 else 1)
    gpu = replace(H100, nvlink_bytes_per_s=nvlink_gbs * 1e9)
    return price_collective(kind, size, communicator, gpu, on).seconds


def test_a_measured_call_takes_what_was_measured_undisturbed() -> None:
    for nodes in (2, 8, 32):
        moved = GIB * (8 * nodes - 1) / (8 * nodes)
        assert moved / seconds(CURVE, GIB, 8, nodes) == pytest.approx(busbw(nodes) * 1e9)


def test_on_the_most_nodes_bytes_take_the_mean() -> None:
    moved, hops_s = GIB * 511 / 512, 511 * HOP_US * 1e-6
    expected = hops_s + moved / WIRE_GBS / 1e9 * 2
    assert seconds(CURVE, GIB, 8, 64) == pytest.approx(expected)


def test_siblings_fill_the_nodes_that_a_communicator_leaves_out() -> None:
    beside = replace(group(1, 4, 8), reach=64)
    wide = price_collective("all_gather", GIB, beside, H100, CURVE).seconds
    assert wide > 1.5 * seconds(CURVE, GIB, 1, 4)


@pytest.mark.parametrize(("nodes", "ranks"), [(20, 80), (24, 96), (36, 144)])
def test_a_table_need_not_fill_every_nvlink_domain(nodes: int, ranks: int) -> None:
    row = MeasuredCollective("all_to_all", nodes, GIB, 40, 40, 40)
    racks = replace(cluster(36, 4, 4, domain=72), measured_collectives="own.csv", measured=(row,))
    # Half of what a rank sends leaves its rack, whatever part of two racks was measured.
    own = price_collective("all_to_all", GIB, group(72, 2), H100, racks).seconds
    assert own == pytest.approx(GIB / 2 / 40e9 * (ranks - 1) / ranks * 2, rel=0.02)


@pytest.mark.parametrize("gpus", [2, 3, 4, 6, 7])
def test_gpus_without_nvlink_are_measured_in_one_server(gpus: int) -> None:
    row = MeasuredCollective("all_gather", 1, GIB, 10, 10, 10, gpus)
    servers = replace(
        cluster(2, 8, 1, 100, domain=1), measured_collectives="own.csv", measured=(row,)
    )
    alone = Communicator("tp", gpus, 1, gpus, servers=1)
    taken_s = price_collective("all_gather", GIB, alone, A100_PCIE, servers).seconds
    assert GIB * (gpus - 1) / gpus / taken_s == pytest.approx(10e9)


def test_a_hop_takes_what_every_further_one_adds_in_the_undisturbed_band() -> None:
    assert hop_us("all_gather", CURVE) == pytest.approx(HOP_US)
    assert hop_us("all_reduce", CURVE) == 0
    plain = replace(CURVE, measured=tuple(replace(r, high_gbs=r.bus_gbs) for r in CURVE.measured))
    assert hop_us("all_gather", plain) == 0


def between(nodes: int, size: int, us: float) -> MeasuredCollective:
    """A gather over whole nodes that took so long."""
    ranks = 8 * nodes
    rate = size * (ranks - 1) / ranks / us / 1e3
    return MeasuredCollective("all_gather", nodes, size, rate, rate, rate)


def test_between_nodes_several_sizes_take_what_they_took() -> None:
    ideal = cluster(64, 8)
    off = {8 * KIB: 2, 2 * MIB: 4, 512 * MIB: 3}
    slower = {size: 1e6 * seconds(ideal, size, 8, 4) * times for size, times in off.items()}
    own = imperfect(*(between(4, size, us) for size, us in slower.items()))
    for size, us in slower.items():
        assert seconds(own, size, 8, 4) == pytest.approx(us * 1e-6)
    # Sizes between them, fewer GPUs of each node and other numbers of nodes follow the model.
    for ranks, nodes, size in ((8, 4, 64 * MIB), (2, 4, 512 * MIB), (8, 16, 512 * MIB)):
        stretched = seconds(own, size, ranks, nodes) / seconds(ideal, size, ranks, nodes)
        assert stretched == pytest.approx(3.3, rel=0.25)


def test_large_sizes_alone_do_not_tell_when_calls_start() -> None:
    ideal = cluster(64, 8)
    large = {size: 2e6 * seconds(ideal, size, 8, 4) for size in (16 * MIB, GIB)}
    own = imperfect(*(between(4, size, us) for size, us in large.items()))
    assert seconds(own, 1, 8, 4) == seconds(ideal, 1, 8, 4)


def test_other_sizes_keep_the_hops_and_scale_the_bytes() -> None:
    size = 32 * MIB
    expected = 15 * HOP_US * 1e-6 + size * 15 / 16 / (WIRE_GBS * 1e9)
    assert seconds(CURVE, size, 8, 2) == pytest.approx(expected)


def test_below_the_eager_size_hops_shrink_with_the_message() -> None:
    assert seconds(CURVE, 64 * KIB, 8, 8) < seconds(CURVE, 64 * MIB, 8, 8) / 4


@pytest.mark.parametrize("per_node", [1, 2, 4])
def test_ranks_of_a_node_have_their_share_of_its_nics(per_node: int) -> None:
    nodes, size = 8, 8 * GIB
    ranks = per_node * nodes
    wire_s = size * (ranks - 1) / ranks / (WIRE_GBS * 1e9 * per_node / 8)
    hops_s = (ranks - 1) * HOP_US * 1e-6
    assert seconds(CURVE, size, per_node, nodes) == pytest.approx(wire_s + hops_s)


@pytest.mark.parametrize("per_node", [1, 2, 4])
def test_a_share_is_of_nvlink_where_that_carries_less_than_a_nodes_nics(per_node: int) -> None:
    """As on NVL72 and H800: whole nodes reach what NVLink carries, parts of them their NICs."""
    nodes, size, nvlink_gbs = 8, 8 * GIB, 100.0
    ranks, limit_gbs = per_node * nodes, min(50.0 * per_node, 100.0)
    wire_s = size * (ranks - 1) / ranks / (WIRE_GBS * 1e9 * limit_gbs / nvlink_gbs)
    hops_s = (ranks - 1) * HOP_US * 1e-6
    slow = seconds(CURVE, size, per_node, nodes, nvlink_gbs=nvlink_gbs)
    assert slow == pytest.approx(wire_s + hops_s)


@pytest.mark.parametrize("per_node", [1, 2, 4])
def test_a_share_is_of_pcie_where_that_carries_less_than_a_nodes_nics(per_node: int) -> None:
    row = MeasuredCollective("all_gather", 8, GIB, 20, 20, 20)
    servers = replace(cluster(8, 8, 8, 100, domain=1), measured_collectives="x", measured=(row,))
    some = Communicator("dp", 8 * per_node, 1, 8 * per_node, servers=8)
    taken_s = price_collective("all_gather", 8 * GIB, some, A100_PCIE, servers).seconds
    # Of one GPU a node its NIC's 12.5 GB/s, of several all that PCIe carries.
    share = 12.5 / 24 if per_node == 1 else 1.0
    wire_s = 8 * GIB * (1 - 1 / some.size) / 20e9 / share
    assert taken_s == pytest.approx(wire_s, rel=0.05)


def test_between_measured_node_counts_bandwidth_is_interpolated_and_held_outside() -> None:
    points = [(2.0, 100.0), (8.0, 25.0)]
    assert interpolated(points, 4) == pytest.approx(50)
    assert interpolated(points, 1) == 100
    assert interpolated(points, 64) == 25


def test_inside_a_node_what_grows_with_the_size_is_scaled() -> None:
    own = imperfect(replace(measured(1), bus_gbs=150.0, high_gbs=150.0, low_gbs=150.0))
    moved = GIB * 7 / 8
    assert seconds(own, GIB, 8) == pytest.approx(moved / 150e9)
    ideal = cluster(64, 8)
    assert 1 < seconds(own, 64 * MIB, 4) / seconds(ideal, 64 * MIB, 4) < 2.5
    assert seconds(own, 1, 8) == seconds(ideal, 1, 8)
    # Nothing was measured between nodes.
    assert seconds(own, GIB, 8, 2) == seconds(ideal, GIB, 8, 2)


def inside(gpus: int, size: int, us: float) -> MeasuredCollective:
    """A gather on some GPUs of one node that took so long."""
    rate = size * (gpus - 1) / gpus / us / 1e3
    return MeasuredCollective("all_gather", 1, size, rate, rate, rate, gpus)


def test_inside_a_node_two_sizes_tell_of_the_start_as_well() -> None:
    own = imperfect(inside(8, 8 * KIB, 40.0), inside(8, 256 * MIB, 1200.0))
    assert seconds(own, 8 * KIB, 8) == pytest.approx(40e-6)
    assert seconds(own, 256 * MIB, 8) == pytest.approx(1200e-6)
    ideal = cluster(64, 8)
    later = seconds(own, 1, 4) - seconds(ideal, 1, 4)
    assert later == pytest.approx(40e-6 - seconds(ideal, 8 * KIB, 8), rel=0.2)


def test_inside_a_node_the_nearest_number_of_gpus_tells() -> None:
    own = imperfect(
        *(inside(2, size, us) for size, us in ((8 * KIB, 15.0), (256 * MIB, 5000.0))),
        *(inside(8, size, us) for size, us in ((8 * KIB, 40.0), (256 * MIB, 1200.0))),
    )
    assert seconds(own, 256 * MIB, 2) == pytest.approx(5000e-6)
    assert seconds(own, 256 * MIB, 8) == pytest.approx(1200e-6)


def test_a_start_is_never_free() -> None:
    own = imperfect(inside(8, 8 * KIB, 0.1), inside(8, 256 * MIB, 1200.0))
    assert 0 < seconds(own, 1, 8) < seconds(cluster(64, 8), 1, 8)


def test_more_gpus_than_a_node_has_are_refused() -> None:
    with pytest.raises(InputError, match=r"row of 16 GPUs of one node.*at most 8"):
        imperfect(inside(16, GIB, 9000.0)).check()


def test_pairs_between_nodes_are_scaled_by_what_leaves_them() -> None:
    row = MeasuredCollective("all_to_all", 2, GIB, 40.0, 40.0, 40.0)
    own = imperfect(row)
    assert seconds(own, GIB, 8, 2, "all_to_all") == pytest.approx(GIB * 15 / 16 / 40e9)
    assert seconds(own, 2 * GIB, 8, 2, "all_to_all") > 1.9 * seconds(own, GIB, 8, 2, "all_to_all")


HEADER = "collective,nodes,bytes,bus_GBps\n"


def test_a_table_is_read_whatever_it_calls_a_collective(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text(f"{HEADER}reduce_scatter,4,1024,7\nAllReduce,2,,5.5\nall-gather_perf,2,8,1\n")
    assert read_measured_collectives(file) == (
        MeasuredCollective("all_gather", 2, 8, 1, 1, 1),
        MeasuredCollective("all_reduce", 2, GIB, 5.5, 5.5, 5.5),
        MeasuredCollective("reduce_scatter", 4, 1024, 7, 7, 7),
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "has no column collective, nodes, bus_GBps"),
        ("collective,nodes\nall_gather,2\n", "has no column bus_GBps"),
        (HEADER, "has no rows"),
        (HEADER.replace(",", ";"), "is separated by ';' .*commas"),
        ("collective,nodes,nodes,bus_GBps\n", "has two columns nodes"),
        (f"{HEADER}all_gathr,2,8,1\n", "line 2: has 'all_gathr'.*did you mean 'all_gather'"),
        (f"{HEADER}all_gather,2.5,8,1\n", "line 2: has '2.5' as its nodes .*whole number > 0"),
        (f"{HEADER}all_gather,2,8,fast\n", "line 2: has 'fast' as its bus_GBps .*a number > 0"),
        (f"{HEADER}all_gather,2,8,0\n", "line 2: has '0' as its bus_GBps"),
        (f"{HEADER}all_gather,2,8,180,5\n", "line 2: has more cells than there are columns"),
        (
            "collective,nodes,gpus,bus_GBps\nall_gather,2,8,1\n",
            "line 2: has 8 GPUs of 2 nodes.*2 or more of one node",
        ),
        (f"{HEADER}all_gather,2,8,1\nAllGather,2,8,2\n", "over 2 nodes, 8 bytes twice"),
        (
            "collective,nodes,bus_GBps,band_high_GBps\nall_gather,2,5,4\n",
            "line 2: has a band of 5 to 4 GB/s",
        ),
    ],
)
def test_bad_tables_are_refused_with_the_line(tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "own.csv"
    file.write_text(content)
    with pytest.raises(InputError, match=problem) as refused:
        read_measured_collectives(file)
    assert refused.value.field == "cluster.measured_collectives"


def test_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--measured.*cannot be read"):
        read_measured_collectives(tmp_path / "none.csv", "--measured-collectives")


def test_what_was_measured_is_oversubscribed_already() -> None:
    with pytest.raises(InputError, match="in what was measured already"):
        replace(CURVE, oversubscription=2.0).check()
    inside = replace(CURVE, measured=(replace(CURVE.measured[0], nodes=1),))
    replace(inside, oversubscription=2.0).check()
    with pytest.raises(InputError, match="where measured collectives are read from"):
        replace(CURVE, measured=()).check()
