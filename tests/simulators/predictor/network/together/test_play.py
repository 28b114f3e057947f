"""Work and messages that wait for each other: closed forms, on every engine."""

import numpy as np
import pytest

from tests.simulators.predictor.network.topology.test_network import fabric_named, wired
from trainscout.simulators.predictor.network.choice import NetworkChoice
from trainscout.simulators.predictor.network.collectives.patterns import send
from trainscout.simulators.predictor.network.collectives.transfers import together
from trainscout.simulators.predictor.network.together.activities import Activities, Message, alone
from trainscout.simulators.predictor.network.together.play import play_together

NETWORK = wired("h100_64", fabric_named("leaf_spine", nics_per_leaf=64, hop_latency_s=0.0))
NIC = 50e9
MB = 1e6
ENGINES = [NetworkChoice(name) for name in ("flow", "packet", "hybrid")]
FLOW = ENGINES[0]


def activities(seconds, message, edges, messages):
    before, after = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return Activities(
        np.array(seconds), np.array(message, dtype=np.int64), before, after, tuple(messages)
    )


# Work, a message after it, work after that; and beside it a message to the same GPU.
MET = activities(
    [1e-3, 2e-3, 3e-3, 2e-3],
    [-1, 0, -1, 1],
    [(0, 1), (1, 2)],
    [
        Message(send(0, 8), 100 * MB, 0.0, "pp"),
        Message(send(16, 8), 100 * MB, 0.0, "dp"),
    ],
)


def test_alone_everything_takes_its_own_time():
    start, end = alone(MET)
    assert start.tolist() == [0, 1e-3, 3e-3, 0]
    assert end.tolist() == [1e-3, 3e-3, 6e-3, 2e-3]


@pytest.mark.parametrize("settings", ENGINES, ids=lambda each: each.engine)
def test_messages_that_meet_share_their_link(settings):
    """The second has a millisecond to itself, then both have half of the NIC."""
    played = play_together(MET, NETWORK, settings)
    assert played.whole
    np.testing.assert_allclose(played.end_s[[0, 3]], [1e-3, 3e-3], rtol=2e-3)
    np.testing.assert_allclose(played.end_s[[1, 2]], [4e-3, 7e-3], rtol=2e-3)
    assert played.flows == 2
    down = NETWORK.down("nic") + 8
    assert played.link_bytes[down] == pytest.approx(200 * MB)


@pytest.mark.parametrize("settings", ENGINES, ids=lambda each: each.engine)
def test_kinds_apart_do_not_meet(settings):
    played = play_together(MET, NETWORK, settings, apart=True)
    np.testing.assert_allclose(played.end_s, alone(MET)[1], rtol=2e-3)
    assert played.link_bytes[NETWORK.down("nic") + 8] == pytest.approx(200 * MB)


def test_a_message_waits_for_all_and_its_delay():
    both = activities(
        [1e-3, 2e-3, 1e-3],
        [-1, -1, 0],
        [(0, 2), (1, 2)],
        [Message(together([send(0, 8), send(1, 9)]), 50 * MB, 5e-4)],
    )
    played = play_together(both, NETWORK, FLOW)
    assert played.start_s[2] == pytest.approx(2e-3)
    assert played.end_s[2] == pytest.approx(2.5e-3 + 50 * MB / NIC, rel=1e-6)


def test_a_budget_ends_with_what_is_known():
    long = activities([1e-3, 1.0], [-1, 0], [(0, 1)], [Message(send(0, 8), 50e9, 0.0)])
    played = play_together(long, NETWORK, NetworkChoice("packet"), 0.01)
    assert played.end_s[0] == 1e-3
    assert np.isinf(played.end_s[1])
    assert not played.whole
    assert 0 < played.now_s < 1


def test_activities_that_wait_for_each_other_are_told():
    circle = activities([1.0, 1.0], [-1, -1], [(0, 1), (1, 0)], [])
    for play in (alone, lambda of: play_together(of, NETWORK, FLOW)):
        with pytest.raises(RuntimeError, match="wait for each other"):
            play(circle)
