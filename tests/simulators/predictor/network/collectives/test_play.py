"""Communications on every engine: alone, together, and over too few links."""

import dataclasses

import numpy as np
import pytest

from tests.simulators.predictor.network.topology.test_network import fabric_named, wired
from trainscout.simulators.predictor.network.choice import NetworkChoice
from trainscout.simulators.predictor.network.collectives.patterns import by_node, pattern, send
from trainscout.simulators.predictor.network.collectives.play import play
from trainscout.simulators.predictor.network.collectives.transfers import together
from trainscout.simulators.predictor.network.packet.settings import PacketSettings
from trainscout.simulators.predictor.question.errors import InputError

FULL = wired("h100_64", fabric_named("leaf_spine", nics_per_leaf=16))
HALF = wired("h100_64", fabric_named("leaf_spine", nics_per_leaf=16, oversubscription=2.0))
ENGINES = [NetworkChoice(name) for name in ("flow", "packet", "hybrid")]
MB = 1e6


def ring_over(network, ranks, kind="all_reduce", channels=1):
    return pattern(kind, by_node(ranks, network.domain), channels=channels)


@pytest.mark.parametrize("settings", ENGINES, ids=lambda each: each.engine)
def test_one_ring_over_one_gpu_a_node_takes_the_nic_rate(settings):
    ring = ring_over(FULL, range(0, 64, 8))
    played = play(FULL, ring, 64 * MB, settings)
    expected = 2 * 7 / 8 * 64 * MB / 50e9
    # ECMP may send two of eight flows over one uplink of a leaf.
    assert expected <= played.end_s.max() <= 2.1 * expected
    assert played.busy.max() <= 1 + 1e-9


@pytest.mark.parametrize("settings", ENGINES, ids=lambda each: each.engine)
def test_inside_a_node_nvlink_is_the_limit(settings):
    ring = ring_over(FULL, range(8))
    played = play(FULL, ring, 64 * MB, settings)
    assert played.end_s.max() == pytest.approx(2 * 7 / 8 * 64 * MB / 450e9, rel=0.05)
    nvlinks = slice(0, FULL.first["pcie"])
    assert played.link_bytes[nvlinks].sum() == played.link_bytes.sum()


def test_engines_agree_on_long_messages():
    rings = together([ring_over(FULL, range(rail, 64, 8)) for rail in range(8)])
    fluid, hybrid = (
        play(FULL, rings, 256 * MB, NetworkChoice(name)) for name in ("flow", "hybrid")
    )
    assert hybrid.end_s.max() == pytest.approx(fluid.end_s.max(), rel=0.05)
    np.testing.assert_allclose(hybrid.link_bytes, fluid.link_bytes)


def test_oversubscription_costs_what_leaves_a_leaf():
    rings = together([ring_over(FULL, range(rail, 64, 8)) for rail in range(8)])
    full, half = (play(network, rings, 256 * MB) for network in (FULL, HALF))
    assert 1.2 < half.end_s.max() / full.end_s.max() <= 2.0 + 1e-9
    uplinks = slice(HALF.up("leaf"), HALF.up("leaf") + HALF.count["leaf"])
    assert half.busy[uplinks].max() > 0.99


def test_communications_share_what_they_both_cross():
    alone = play(FULL, send(0, 8), 100 * MB)
    both = play(FULL, together([send(0, 8), send(0, 9)]), 100 * MB)
    assert both.end_s.max() == pytest.approx(2 * alone.end_s[0], rel=0.01)


def test_packets_carry_the_settings_they_are_given():
    framed = NetworkChoice("packet", packet=PacketSettings(header_bytes=410))
    plain, more = (
        play(FULL, send(0, 8), 10 * MB, each).end_s[0]
        for each in (NetworkChoice("packet"), framed)
    )
    assert more / plain == pytest.approx(1.1, rel=0.01)


def test_unknown_engines_are_refused():
    with pytest.raises(InputError) as refused:
        play(FULL, send(0, 8), MB, dataclasses.replace(ENGINES[0], engine="packets"))
    assert refused.value.nearest == "packet"
