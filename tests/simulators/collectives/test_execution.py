"""Chunks, loops and counted work."""

from __future__ import annotations

import pytest

from simulators.collectives import execution
from simulators.collectives.cost import choose, options_of
from simulators.collectives.graph import wiring_of
from tests.simulators.collectives import machines as m
from tests.simulators.collectives.machines import GIB, KIB, MIB, cluster, group

H800_32 = wiring_of(group(8, 4), m.H800, cluster(4, 8))
ONE_NODE = wiring_of(group(8), m.H100, cluster(1, 8))


@pytest.mark.parametrize(
    ("size_mib", "chunk"),
    [(4, 18), (8, 36), (16, 72), (32, 72), (64, 72), (128, 144), (256, 288)],
)
def test_tree_chunks_are_moyes_table_5(size_mib: int, chunk: int) -> None:
    # Moye, Table 5: 32 H800 on 4 nodes, NCCL 2.22, 16 channels; thousands of bytes.
    found = execution.tree_chunk_bytes(size_mib * MIB, "ll128", H800_32, 16)
    assert found == chunk * 1000


def test_simple_tree_chunk_shrinks_only_before_2_20() -> None:
    old = wiring_of(group(8, 4), m.H800, cluster(4, 8, version="2.19"))
    assert execution.tree_chunk_bytes(MIB, "simple", H800_32, 16) == 512 * KIB
    assert execution.tree_chunk_bytes(MIB, "simple", old, 16) == 32 * KIB


@pytest.mark.parametrize(
    ("size", "loops"),
    [
        (2 * MIB, 1),  # 16 KiB chunks, 16 channels x 8 heads
        (32 * MIB, 8),  # 32 KiB
        (512 * MIB, 64),  # 64 KiB
        (4 * GIB, 256),  # 128 KiB
    ],
)
def test_nvls_loops(size: int, loops: int) -> None:
    assert execution.nvls_loops(size, 16, 8) == loops


def test_nvls_loops_never_fall_with_size() -> None:
    counts = [execution.nvls_loops(step * MIB, 16, 8) for step in range(1, 2100)]
    assert counts == sorted(counts)


def test_small_messages_use_few_channels() -> None:
    small = choose("all_reduce", KIB, ONE_NODE)
    large = choose("all_reduce", 64 * MIB, ONE_NODE)
    assert execution.channels_used("all_reduce", KIB, small, ONE_NODE) == 1
    assert execution.channels_used("all_reduce", 64 * MIB, large, ONE_NODE) == 16


def test_ring_work_of_an_all_reduce_is_two_laps() -> None:
    ring = next(o for o in options_of("all_reduce", H800_32) if o.algorithm == "ring")
    node = execution.node_terms("all_reduce", MIB, ring, H800_32)
    net = execution.net_terms("all_reduce", MIB, ring, H800_32)
    assert node["hop"] + net["net_hop"] == 2 * 31
    assert net["net_hop"] == 2 * 3


def test_nics_carry_a_tree_twice_on_more_than_two_nodes() -> None:
    two = wiring_of(group(1, 2), m.H100, cluster(2, 8))
    four = wiring_of(group(1, 4), m.H100, cluster(4, 8))
    streams = [
        execution.net_terms("all_reduce", GIB, find_tree(wiring), wiring)["net_stream"]
        for wiring in (two, four)
    ]
    assert streams[1] == pytest.approx(2 * streams[0])
    assert streams[0] == pytest.approx(GIB / 50e3)


def find_tree(wiring: execution.Wiring) -> execution.Option:
    return next(o for o in options_of("all_reduce", wiring) if o.algorithm == "tree")


def test_all_to_all_is_bound_by_what_leaves_the_node() -> None:
    wiring = wiring_of(group(8, 2), m.H100, cluster(2, 8))
    _, net = execution.all_to_all_terms(GIB, wiring)
    assert net["net_stream"] == pytest.approx(GIB / 2 / 50e3)
    assert net["net_peer"] == 8
