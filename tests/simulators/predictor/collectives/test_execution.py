"""Chunks, loops and counted work."""

from __future__ import annotations

import pytest

from tests.simulators.predictor.collectives import machines as m
from tests.simulators.predictor.collectives.machines import GIB, KIB, MIB, cluster, group
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.collectives import execution
from trainscout.simulators.predictor.collectives.cost import Option, choose, options_of
from trainscout.simulators.predictor.collectives.graph import Wiring, wiring_of
from trainscout.simulators.predictor.collectives.price import price_collective
from trainscout.simulators.predictor.workload.ir import Communicator

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


@pytest.mark.parametrize(
    ("size_mib", "rounds"),
    [(4, 15), (8, 15), (16, 15), (32, 30), (64, 59), (128, 59), (256, 59)],
)
def test_rounds_of_moyes_table_5(size_mib: int, rounds: int) -> None:
    # Moye's eta: the tensor over 16 channels and the table's chunk, rounded up.
    tree = next(
        o
        for o in options_of("all_reduce", H800_32)
        if o.algorithm == "tree" and o.protocol == "ll128"
    )
    assert execution.rounds_of("all_reduce", size_mib * MIB, tree, H800_32).count == rounds


def test_tree_grows_as_moyes_equation_5() -> None:
    # Up and down: 2 (K - 1) hops inside and 2 log2(M) between; the rounds beyond the first add
    # their bytes only.
    tree = find("tree", H800_32)
    hops = execution.net_terms("all_reduce", MIB, tree, H800_32)
    assert (hops["net_inner_hops"], hops["net_hop"]) == (2 * 7, 2 * 2)
    small, large = (
        execution.net_terms("all_reduce", size, tree, H800_32) for size in (GIB, 2 * GIB)
    )
    assert large["net_fill"] == small["net_fill"]
    assert large["net_stream"] == pytest.approx(2 * small["net_stream"])


def test_simple_tree_chunk_shrinks_only_before_2_20() -> None:
    old = wiring_of(group(8, 4), m.H800, cluster(4, 8, version="2.19"))
    assert execution.tree_chunk_bytes(MIB, "simple", H800_32, 16) == 512 * KIB
    assert execution.tree_chunk_bytes(MIB, "simple", old, 16) == 32 * KIB


@pytest.mark.parametrize(
    ("size", "rounds", "chunk_kib"),
    [
        (2 * MIB, 1, 16),  # 16 channels x 8 heads: 2 MiB a round
        (32 * MIB, 8, 32),
        (512 * MIB, 64, 64),
        (4 * GIB, 256, 128),
    ],
)
def test_nvls_rounds(size: int, rounds: int, chunk_kib: int) -> None:
    nvls = find("nvls", ONE_NODE)
    found = execution.rounds_of("all_reduce", size, nvls, ONE_NODE)
    assert (found.count, found.chunk_bytes, found.channels) == (rounds, chunk_kib * KIB, 16)


def test_small_messages_use_few_channels() -> None:
    newer = wiring_of(group(8), m.H100, cluster(1, 8, version="2.23"))
    small = choose("all_reduce", KIB, newer)
    large = choose("all_reduce", 64 * MIB, newer)
    assert execution.channels_used("all_reduce", KIB, small, newer) == 1
    assert execution.channels_used("all_reduce", 64 * MIB, large, newer) == 16


@pytest.mark.parametrize(("size", "channels"), [(128, 1), (512, 4), (2048, 16), (8192, 16)])
def test_before_2_22_a_channel_needs_4_kib_of_ll_per_rank(size: int, channels: int) -> None:
    old = wiring_of(group(8, 4), m.A100, cluster(4, 8, 8, 200, "2.18"))
    ring = next(o for o in options_of("all_reduce", old) if o.protocol == "ll")
    assert execution.channels_used("all_reduce", size * KIB, ring, old) == channels


def test_ring_work_of_an_all_reduce_is_two_laps() -> None:
    by_protocol = {
        option.protocol: execution.net_terms("all_reduce", MIB, option, H800_32)
        for option in options_of("all_reduce", H800_32)
        if option.algorithm == "ring"
    }
    for protocol in ("ll", "ll128"):
        assert by_protocol[protocol]["net_hop"] == 2 * 3
    assert by_protocol["ll"]["net_inner_hops"] == 2 * 28
    assert by_protocol["ll128"]["net_inner"] == pytest.approx(2 * 28 * 1.9)


def test_nics_carry_a_tree_twice_on_more_than_two_nodes() -> None:
    two = wiring_of(group(1, 2), m.H100, cluster(2, 8))
    four = wiring_of(group(1, 4), m.H100, cluster(4, 8))
    terms = [
        execution.net_terms("all_reduce", GIB, find("tree", wiring), wiring)
        for wiring in (two, four)
    ]
    assert [each["net_stream"] for each in terms] == pytest.approx([GIB / 50e3] * 2)
    assert [each["net_second"] for each in terms] == pytest.approx([0.0, GIB / 50e3])


def test_a_tree_over_nvls_is_as_fast_as_the_slower_of_nics_and_switches() -> None:
    taken = {}
    for gpu in (m.H100, m.B200):
        wiring = wiring_of(group(8, 2), gpu, cluster(2, 8, 8, 400))
        terms = execution.net_terms("all_reduce", GIB, find("nvls_tree", wiring), wiring)
        assert terms["net_stream"] == pytest.approx(GIB / 400e3)
        taken[gpu.name] = execution.with_inner_hops(terms, {"stream": 1.0})["net_stream"]
    assert taken[m.H100.name] > 1.1 * GIB / 400e3
    assert taken[m.B200.name] == pytest.approx(GIB / 400e3)


def find(algorithm: str, wiring: Wiring) -> Option:
    return next(o for o in options_of("all_reduce", wiring) if o.algorithm == algorithm)


def test_a_hop_hides_behind_the_bytes_of_a_long_ring_step() -> None:
    ring = [o for o in options_of("all_gather", H800_32) if o.algorithm == "ring"][-1]
    assert ring.protocol == "simple"
    hops = [
        execution.net_terms("all_gather", size, ring, H800_32)["net_hop"]
        for size in (MIB, 64 * MIB, 4 * GIB)
    ]
    assert 3 >= hops[0] > hops[1] > hops[2] == 0


def test_a_step_between_nodes_never_costs_more_than_a_handshake_beside_its_bytes() -> None:
    machine = cluster(4, 4, 4, 200, "2.23", fabric="slingshot", cpu="arm", nvswitch=False)
    wiring = wiring_of(group(4, 4), m.H100, machine)
    ring = [o for o in options_of("all_reduce", wiring) if o.algorithm == "ring"][-1]
    for size in (64 * KIB, MIB, 16 * MIB, 256 * MIB):
        terms = execution.net_terms("all_reduce", size, ring, wiring)
        rounds = execution.rounds_of("all_reduce", size, ring, wiring)
        assert 0 <= terms["net_message"] <= 2 * 15 * rounds.count


def test_gpus_that_reach_no_peers_share_the_hosts_memory() -> None:
    # NCCL lets peers cross AMD's root complexes alone, from 2.23 on of no more than two GPUs
    # (ncclTopoCheckP2p); GeForce boards have none. Four A40 of one EPYC socket do better than 18.3
    # GB/s under NCCL 2.8 (NVIDIA/nccl-tests issue 74).
    gpus = load_catalogue().gpus
    size, staged_gbs, peers_gbs = 256 * MIB, 12.6, 18.3
    for name, cpu, version in (
        *(("a40", "amd", "2.22"), ("a40", "amd", "2.23.4"), ("a40", "intel", "2.22")),
        *(("rtx4090", "amd", "2.22"), ("rtx4090", "intel", "2.22")),
    ):
        machine = cluster(1, 4, cpu=cpu, domain=1, version=version)
        members = Communicator("x", 4, 1, 4, servers=1)
        seconds = price_collective("all_reduce", size, members, gpus[name], machine).seconds
        bus_gbs = 1.5 * size / seconds / 1e9
        if (name, cpu, version) == ("a40", "amd", "2.22"):
            assert bus_gbs > peers_gbs
        else:
            assert bus_gbs == pytest.approx(staged_gbs, rel=0.02)


def test_gpus_behind_one_host_share_its_memory() -> None:
    pair = wiring_of(group(2), m.RTX5090, cluster(1, 4, version="2.28"))
    four = wiring_of(group(4), m.RTX5090, cluster(1, 4, version="2.28"))
    assert execution.host_us(10.0, pair) == 0
    assert execution.host_us(10.0, four) == 40
    assert execution.host_us(10.0, ONE_NODE) == 0


def test_hops_inside_the_nodes_take_what_they_take_in_one() -> None:
    assert execution.with_inner_hops({"net_inner_hops": 14.0}, {"hop": 0.5}) == {"net_inner": 7.0}
    assert execution.with_inner_hops({"net_hop": 2.0}, {"launch": 1.0}) == {"net_hop": 2.0}
