"""Factors against what can be counted: which links are shared, by how many, how often."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulators.predictor.network.topology.test_network import fabric_named, hardware
from trainscout.simulators.predictor.network.choice import NetworkChoice
from trainscout.simulators.predictor.network.collectives.congestion import (
    CongestionModel,
    Pattern,
    _plays,
    congestion_model,
    transfers_of,
)
from trainscout.simulators.predictor.network.collectives.transfers import groups, together
from trainscout.simulators.predictor.network.topology.fabric import SwitchFabric
from trainscout.simulators.predictor.network.topology.routing import find_routes
from trainscout.simulators.predictor.question.errors import InputError

MB = 1e6
FLOW = NetworkChoice("flow")
# Eight nodes, one under each leaf: whatever leaves a node crosses a spine.
NODE_A_LEAF = fabric_named("leaf_spine", nics_per_leaf=8)
# One fat uplink a leaf: shared, but nothing collides.
ONE_SPINE = fabric_named("leaf_spine", nics_per_leaf=8, uplink_gbps=3200.0)
RAILS = fabric_named("rail_optimised")


def model(fabric: SwitchFabric, engine: NetworkChoice = FLOW) -> CongestionModel:
    cluster, gpu = hardware("h100_64")
    # Without the microsecond a hop, only bytes and rates count.
    return congestion_model(cluster, gpu, replace(fabric, hop_latency_s=0.0), engine)


@given(
    st.sampled_from([((2, 1),), ((4, 2),), ((8, 8),), ((2, 1), (4, 16)), ((2, 4), (2, 32))]),
    st.sampled_from([64, 128]),
)
def test_groups_hold_every_gpu_once(span, world):
    found = groups(world, span)
    assert sorted(found.ravel().tolist()) == list(range(world))
    members = np.prod([count for count, _ in span])
    assert found.shape == (world // members, members)
    for row in found:
        offsets = {
            sum(step * stride for step, (_, stride) in zip(place, span, strict=True))
            for place in np.ndindex(*(count for count, _ in span))
        }
        assert {int(rank - row[0]) for rank in row} == offsets


def test_groups_that_do_not_divide_the_gpus_are_refused():
    with pytest.raises(InputError, match="does not divide"):
        groups(24, ((16, 1),))


PATTERNS = [
    Pattern("ring", ((8, 8),), channels=2),
    Pattern("ring", ((64, 1),), channels=8),
    Pattern("tree", ((64, 1),), channels=8),
    Pattern("hierarchical", ((64, 1),)),
    Pattern("pairs", ((8, 8),)),
    Pattern("neighbours", ((4, 16),)),
    Pattern("round", ((8, 8),)),
]


@pytest.mark.parametrize("what", PATTERNS, ids=lambda each: each.algorithm)
def test_the_busiest_gpu_sends_what_was_asked(what):
    sent = np.zeros(64)
    for each in transfers_of(what, model(NODE_A_LEAF).network.gpus, 8):
        np.add.at(sent, each.source, each.share)
    assert sent.max() == pytest.approx(1)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "hierarchical"])
@pytest.mark.parametrize("domain", [1, 2])
def test_groups_take_all_nics_of_servers_without_nvlink_too(algorithm: str, domain: int) -> None:
    """Channels leave a server of four members at each of them, and a leaf's uplinks are full."""
    cluster, gpu = hardware("h100_64")
    servers = replace(cluster, nvlink_domain=domain, nic_gbps=50)
    fabric = replace(ONE_SPINE, oversubscription=4.0, hop_latency_s=0.0)
    channels = 1 if algorithm == "hierarchical" else 4
    what = Pattern(algorithm, ((32, 2),), channels)
    found = congestion_model(servers, gpu, fabric, FLOW).congested(what, 64 * MB)
    assert found.factor == pytest.approx(4)


@pytest.mark.parametrize("what", PATTERNS, ids=lambda each: each.algorithm)
def test_nothing_is_slowed_where_nothing_is_shared(what):
    assert model(ONE_SPINE).congested(what, 64 * MB).factor == 1
    assert model(fabric_named("leaf_spine", nics_per_leaf=64)).congested(what, 64 * MB).factor == 1


@pytest.mark.parametrize("ratio", [1.0, 2.0, 3.5])
@pytest.mark.parametrize("kind", ["ring", "round", "pairs"])
def test_what_all_leaves_its_leaf_takes_as_much_longer_as_the_leaf_is_oversubscribed(kind, ratio):
    """One GPU of each node: every byte crosses a spine, and all NICs of a leaf are busy."""
    what = Pattern(kind, ((8, 8),), channels=1)
    found = model(replace(ONE_SPINE, oversubscription=ratio)).congested(what, 64 * MB)
    assert found.factor == pytest.approx(ratio, rel=1e-3)


def test_a_ring_with_half_of_its_edges_inside_leaves_bears_twice_the_oversubscription():
    """Two nodes a leaf: a leaf's uplinks carry half of what its NICs send."""
    what = Pattern("round", ((8, 8),))
    for ratio, factor in ((2.0, 1.0), (4.0, 2.0)):
        fabric = fabric_named(
            "leaf_spine", nics_per_leaf=16, uplink_gbps=6400.0, oversubscription=ratio
        )
        assert model(fabric).congested(what, 64 * MB).factor == pytest.approx(factor, rel=1e-3)


def test_rails_keep_what_stays_on_a_rail_from_meeting_anything():
    assert model(RAILS).congested(Pattern("ring", ((8, 8),)), 64 * MB).factor == 1


def test_flows_that_meet_in_one_uplink_share_it():
    """The factor of single flows is the most of them that the hash sends over one link."""
    wired = model(NODE_A_LEAF)
    what = Pattern("round", ((8, 8),))
    found = wired.congested(what, 64 * MB)
    network = wired.network
    uplinks = found.played.link_bytes[network.first["leaf"] :]
    assert found.factor == pytest.approx(uplinks.max() / (64 * MB), rel=1e-3)
    assert found.factor > 1


def test_a_failed_nic_doubles_what_its_neighbour_carries():
    worn = fabric_named("leaf_spine", nics_per_leaf=64, link_health={"node3-nic2": 0.0})
    assert model(worn).congested(Pattern("round", ((8, 8),)), 64 * MB).factor == pytest.approx(
        2, rel=1e-3
    )
    half = fabric_named("leaf_spine", nics_per_leaf=64, link_health={"node3-nic2": 0.25})
    assert model(half).congested(Pattern("round", ((8, 8),)), 64 * MB).factor == pytest.approx(
        4, rel=1e-3
    )


def test_a_pipeline_waits_for_each_of_its_transfers_in_turn():
    """Of fourteen transfers of a pipeline of eight, the four over a NIC at a quarter of its rate
    take four times as long and no other does: a micro-batch that crosses all takes the mean."""
    worn = fabric_named("leaf_spine", nics_per_leaf=64, link_health={"node3-nic2": 0.25})
    found = model(worn).congested(Pattern("neighbours", ((8, 8),)), 64 * MB)
    assert found.factor == pytest.approx((10 * 1 + 4 * 4) / 14, rel=1e-3)


def test_a_worn_nvlink_slows_groups_inside_nodes():
    worn = fabric_named("leaf_spine", link_health={"gpu5-nvlink": 0.5})
    found = model(worn).congested(Pattern("ring", ((8, 1),), channels=4), 64 * MB)
    assert found.factor == pytest.approx(2, rel=1e-3)


@given(st.lists(st.floats(0.01, 1.0), min_size=8, max_size=8))
@settings(max_examples=settings.default.max_examples // 2)
def test_an_uneven_exchange_takes_as_long_as_its_busiest_receiver(weights):
    """One GPU a node: an exchange lasts as long as the largest column of its matrix needs one
    NIC, and a row, what one GPU sends, is shorter."""
    loads = tuple((np.array(weights) / sum(weights)).tolist())
    wired = model(ONE_SPINE)
    uneven = wired.congested(Pattern("pairs", ((8, 8),), loads=loads), 64 * MB)
    assert uneven.factor == 1
    transfers = transfers_of(Pattern("pairs", ((8, 8),), loads=loads), wired.network.gpus, 8)
    received = np.zeros(64)
    for each in transfers:
        np.add.at(received, each.destination, each.share)
    longest = max(received.max(), 1.0) * 64 * MB / 50e9
    assert uneven.played.end_s.max() == pytest.approx(longest, rel=1e-3)


def bytes_between(what: Pattern) -> np.ndarray:
    """Of one group of 16 GPUs in two nodes, undone what scales them."""
    (made,) = transfers_of(what, 16, 8)
    found = np.zeros((16, 16))
    np.add.at(found, (made.source, made.destination), made.share)
    return found


LOADS = tuple((np.arange(1, 17) / 136).tolist())


@pytest.mark.parametrize("loads", [(), LOADS])
def test_an_exchange_in_two_levels_crosses_to_its_own_place_and_brings_the_same(loads):
    flat = bytes_between(Pattern("pairs", ((16, 1),), loads=loads))
    levels = bytes_between(Pattern("hierarchical_pairs", ((16, 1),), loads=loads))
    # What a node sends to the other is the same; scales differ by what is passed on.
    levels *= flat[:8, 8:].sum() / levels[:8, 8:].sum()
    across = levels[:8, 8:]
    assert (across == np.diag(np.diag(across))).all()
    np.testing.assert_allclose(np.diag(across), flat[:8, 8:].sum(axis=1))
    # All that comes to a GPU and is not for others of its node is what came to it directly.
    kept = levels.sum(axis=0)[8:] - (levels[8:, 8:] - flat[8:, 8:]).sum(axis=1)
    np.testing.assert_allclose(kept, flat.sum(axis=0)[8:])


@pytest.mark.parametrize("algorithm", ["pairs", "hierarchical_pairs"])
def test_the_way_back_is_the_way_there_the_other_way_round(algorithm):
    there, back = (
        bytes_between(Pattern(algorithm, ((16, 1),), loads=LOADS, back=back))
        for back in (False, True)
    )
    np.testing.assert_allclose(back / back.sum(), there.T / there.sum())


def test_rails_carry_an_exchange_in_two_levels_alone():
    """Flat, seven of eight copies to the other node climb to spines and are hashed; in two levels
    all stay under their rail's leaf."""
    cluster, gpu = hardware("h100_64")
    fabric = fabric_named("rail_optimised", nics_per_leaf=4, forward_by_nvlink=False)
    wired = congestion_model(cluster, gpu, fabric, FLOW)
    flat, levels = (
        wired.congested(Pattern(algorithm, ((16, 1),)), 64 * MB).factor
        for algorithm in ("pairs", "hierarchical_pairs")
    )
    assert flat > 1.05
    assert levels == 1


def test_a_hot_expert_makes_the_exchange_as_much_longer_as_it_is_hot():
    wired = model(ONE_SPINE)
    even, hot = (
        wired.congested(Pattern("pairs", ((8, 8),), loads=loads), 64 * MB).played
        for loads in (((1 / 8,) * 8), (3 / 8, *((5 / 56,) * 7)))
    )
    # Both sent the same bytes in all: what each GPU sends most is scaled to 64 MB.
    sent_even, sent_hot = 1 / 8 * 7, 1 - 5 / 56
    column_even, column_hot = 7 / 8, 7 * 3 / 8
    expected = column_hot / sent_hot / (column_even / sent_even)
    assert hot.end_s.max() / even.end_s.max() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("engine", ["packet", "hybrid"])
def test_packets_find_the_same_oversubscription(engine):
    """And nearly nothing (a hop's store and forward) where nothing is shared."""
    cluster, gpu = hardware("h100_64")
    sending_s, travelling_s = 2 * MB / 50e9, 4e-6
    for ratio in (1.0, 2.0):
        fabric = replace(ONE_SPINE, oversubscription=ratio)
        wired = congestion_model(cluster, gpu, fabric, NetworkChoice(engine))
        factor = wired.congested(Pattern("round", ((8, 8),)), 2 * MB).factor
        expected = (ratio * sending_s + travelling_s) / (sending_s + travelling_s)
        assert factor == pytest.approx(expected, rel=0.005)


def test_what_was_played_is_not_played_again():
    wired = model(NODE_A_LEAF)
    what = Pattern("ring", ((8, 8),), channels=3)
    assert wired.congested(what, MB) is wired.congested(what, MB)
    assert model(NODE_A_LEAF) is wired
    cluster, gpu = hardware("h100_64")
    faster = replace(gpu, memory_bandwidth_bytes_per_s=2 * gpu.memory_bandwidth_bytes_per_s)
    other_nic = replace(cluster, nic_gbps=2 * cluster.nic_gbps)
    at_once = replace(NODE_A_LEAF, hop_latency_s=0.0)
    assert congestion_model(cluster, faster, at_once, FLOW).congested(what, MB) is wired.congested(
        what, MB
    )
    played = congestion_model(other_nic, gpu, at_once, FLOW).congested(what, MB)
    assert played is not wired.congested(what, MB)


@given(st.lists(st.sampled_from(PATTERNS), min_size=2, max_size=4), st.integers(0, 3))
@settings(max_examples=settings.default.max_examples // 6)
def test_what_was_played_before_changes_no_factor(patterns, seed):
    """The hybrid engine remembers components of one pattern for all others."""
    cluster, gpu = hardware("h100_64")
    fabric = replace(NODE_A_LEAF, ecmp_seed=seed)
    hybrid = NetworkChoice("hybrid")
    _plays.cache_clear()
    wired = CongestionModel(cluster, gpu, fabric, hybrid)
    in_turn = [wired.congested(what, 4 * MB).factor for what in patterns]
    for what, factor in zip(patterns, in_turn, strict=True):
        _plays.cache_clear()
        assert (
            CongestionModel(cluster, gpu, fabric, hybrid).congested(what, 4 * MB).factor == factor
        )


@pytest.mark.parametrize("what", PATTERNS, ids=lambda each: each.algorithm)
def test_where_nothing_is_shared_switches_belong_to_one_nic(what):
    ideal = model(NODE_A_LEAF).ideal
    made = together(transfers_of(what, ideal.gpus, ideal.domain))
    links = find_routes(ideal, made.source, made.destination, made.label).links
    nic = (links >= ideal.first["nic"]) & (links < ideal.first["leaf"])
    of_switch: dict[int, int] = {}
    for row, cables in zip(links, nic, strict=True):
        for link in row[row >= ideal.first["leaf"]].tolist():
            assert of_switch.setdefault(link, int(row[cables][0])) == row[cables][0]
    assert all(link >= model(NODE_A_LEAF).network.num_links for link in of_switch)
