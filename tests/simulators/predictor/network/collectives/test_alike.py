"""What is played once against everything played."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulators.predictor.network.collectives.test_congestion import NODE_A_LEAF, PATTERNS
from tests.simulators.predictor.network.topology.test_network import hardware
from trainscout.simulators.predictor.network.choice import NetworkChoice
from trainscout.simulators.predictor.network.collectives.congestion import transfers_of
from trainscout.simulators.predictor.network.collectives.play import (
    first_alike,
    make_engine,
    paths_of,
    play,
)
from trainscout.simulators.predictor.network.collectives.transfers import together
from trainscout.simulators.predictor.network.packet.settings import PacketSettings
from trainscout.simulators.predictor.network.topology.wiring import build_network

MB = 1e6


@given(
    st.sampled_from(PATTERNS),
    st.integers(0, 5),
    st.sampled_from([{}, {"leaf0-spine1": 0.5, "node3-nic2": 0.25}]),
    st.sampled_from(["packet", "hybrid"]),
)
@settings(max_examples=20)
def test_all_flows_arrive_as_when_every_flow_is_played(what, seed, worn, engine):
    cluster, gpu = hardware("h100_64")
    network = build_network(cluster, gpu, replace(NODE_A_LEAF, ecmp_seed=seed, link_health=worn))
    made = together(transfers_of(what, network.gpus, network.domain))
    by = NetworkChoice(engine)
    routes, _ = paths_of(network, made, by)
    every = make_engine(network, by)
    flows = every.add(routes, np.maximum(made.share * MB, 1.0))
    every.advance()
    played = play(network, made, MB, by).end_s
    assert played.tolist() == every.completion_s(flows).tolist()


def test_components_are_alike_by_sizes_rates_delays_and_where_routes_meet():
    cluster, gpu = hardware("h100_64")
    network = build_network(cluster, gpu, NODE_A_LEAF)
    nics = network.up("nic")
    # Two flows over one link, three times; then two that share none.
    links = np.array([[nics + at // 2, nics + 10 + at] for at in range(6)] + [[40, -1], [41, -1]])
    sizes = np.ones(8)
    assert first_alike(network, links, sizes).tolist() == [0, 1, 0, 1, 0, 1, 6, 6]
    sizes[3] = 2
    assert first_alike(network, links, sizes).tolist() == [0, 1, 2, 3, 0, 1, 6, 6]
    slower = network.rate_bytes_per_s.copy()
    slower[nics + 14] /= 2
    other = replace(network, rate_bytes_per_s=slower)
    assert first_alike(other, links, sizes).tolist() == [0, 1, 2, 3, 4, 5, 6, 6]


@pytest.mark.parametrize(
    ("packet", "alike"),
    [({}, True), ({"congestion": "dcqcn"}, False), ({"routing": "spray"}, False)],
)
def test_what_chance_has_a_part_in_is_played_whole(packet, alike):
    assert NetworkChoice("packet", packet=PacketSettings(**packet)).plays_alike == alike
    assert not NetworkChoice("flow").plays_alike
