"""HPCC: links used as far as its target, with next to nothing waiting (Li et al. 2019)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulators.predictor.network.packet.fabrics import DELAY_S, RATE, LeafSpine
from tests.simulators.predictor.network.packet.ports import port_report, queued_bytes
from trainscout.simulators.predictor.network.packet.settings import Hpcc, PacketSettings
from trainscout.simulators.predictor.question.errors import InputError

FABRIC = LeafSpine()
MB = 1_000_000
INTO = FABRIC.hosts


def steady(senders, **more):
    """How far the last link of an incast is used, what waits there, and how even senders are."""
    engine = FABRIC.engine(PacketSettings(congestion="hpcc", **more))
    flows = [(host, 0, host % 4) for host in range(4, 4 + senders)]
    numbers = engine.add(FABRIC.routes(flows), 10 * MB)
    engine.advance(senders * 10 * MB / RATE / 2)
    sent, began_s, waiting = port_report(engine).bytes_sent[INTO], engine.now_s, []
    for _ in range(60):
        engine.advance(engine.now_s + 3e-6)
        waiting.append(queued_bytes(engine)[INTO])
    used = (port_report(engine).bytes_sent[INTO] - sent) / (engine.now_s - began_s) / RATE
    engine.advance()
    ends = engine.completion_s(numbers)
    return used, np.array(waiting), ends.min() / ends.max()


@pytest.mark.parametrize("senders", [1, 8])
@pytest.mark.parametrize("eta", [0.95, 0.8])
def test_a_shared_link_is_used_to_its_target_and_nothing_waits(senders, eta):
    used, waiting, even = steady(senders, hpcc=Hpcc(eta=eta))
    assert used == pytest.approx(eta, rel=0.015)
    # A bandwidth-delay product is some 270 KB here; windows alone would leave seven wait.
    assert waiting.mean() < 2 * 4096
    # Steps of 80 bytes make shares even, slowly.
    assert even > 0.65


def test_an_incast_drains_without_idling_the_link():
    """Windows are set anew once a round trip, which the queue stretches: two or three times until
    it is gone, where windows alone would keep it for good. The link is busy all the while."""
    engine = FABRIC.engine(PacketSettings(congestion="hpcc"))
    flows = [(host, 0, host % 4) for host in range(4, 12)]
    engine.add(FABRIC.routes(flows), 10 * MB)
    round_trip_s = 8 * DELAY_S + 4 * 4096 / RATE
    engine.advance(3 * round_trip_s)
    assert queued_bytes(engine)[INTO] > 7 * RATE * round_trip_s
    sent, began_s = port_report(engine).bytes_sent[INTO], engine.now_s
    engine.advance(20 * round_trip_s)
    assert queued_bytes(engine)[INTO] < 5 * 4096
    carried = port_report(engine).bytes_sent[INTO] - sent
    assert carried > 0.95 * RATE * (engine.now_s - began_s)


def test_stamps_are_of_one_path():
    with pytest.raises(InputError) as refused:
        PacketSettings(congestion="hpcc", routing="spray").check()
    assert refused.value.field == "network.packet.congestion"
