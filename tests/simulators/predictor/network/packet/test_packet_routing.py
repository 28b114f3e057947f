"""Packets of a flow on several paths: sprayed, routed by switches, led around failures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.simulators.predictor.network.packet.fabrics import DELAY_S, RATE, LeafSpine, alone_s
from tests.simulators.predictor.network.packet.ports import port_report, resent_bytes
from trainscout.simulators.predictor.network.packet.failing import FailingEngine
from trainscout.simulators.predictor.network.packet.settings import PacketSettings
from trainscout.simulators.predictor.network.topology.fabric import Failure
from trainscout.simulators.predictor.question.errors import InputError

FABRIC = LeafSpine()
MB = 1_000_000
SIZE = 4096 * 500
# All hosts of a leaf over one spine to the next leaf.
COLLIDING = [(host, (host + 4) % 16, 0) for host in range(16)]
PATIENT = PacketSettings(recovery="selective_repeat", timeout_s=100e-6)


def over_other_spines(flows):
    return [
        FABRIC.routes([(a, b, (spine + turn) % 4) for a, b, spine in flows]) for turn in (1, 2, 3)
    ]


def ends(flows, settings, size=SIZE):
    engine = FABRIC.engine(settings)
    numbers = engine.add(FABRIC.routes(flows), size, others=over_other_spines(flows))
    engine.advance()
    return engine, engine.completion_s(numbers)


@pytest.mark.parametrize("routing", ["spray", "adaptive"])
def test_packets_use_all_paths_where_flows_collide(routing):
    """Four flows share an uplink; packet by packet, four uplinks carry four flows at full rate."""
    _, hashed = ends(COLLIDING, PacketSettings())
    assert hashed.max() == pytest.approx(4 * SIZE / RATE, rel=0.02)
    engine, spread = ends(COLLIDING, PacketSettings(routing=routing))
    # At most a packet of each other host is ahead at a port.
    assert spread.max() <= alone_s(SIZE, 4) + 3 * 4096 / RATE
    carried = port_report(engine).bytes_sent[32:]
    np.testing.assert_allclose(carried, SIZE, rtol=0.01)


def failing(flows, *failures, settings=PATIENT, size=16 * MB):
    """Ends of flows where the uplink of the first leaf to spine 0 fails."""
    engine = FailingEngine(
        np.full(FABRIC.links, RATE), DELAY_S, 4, settings, [(each, [32]) for each in failures]
    )
    numbers = engine.add(FABRIC.routes(flows), size, others=over_other_spines(flows))
    engine.advance()
    return engine, engine.completion_s(numbers)


def worn(routing, recovery="selective_repeat"):
    """Four hosts of a leaf send to the next; one of its uplinks has a quarter of its rate."""
    flows = [(host, host + 4, host) for host in range(4)]
    settings = replace(PATIENT, routing=routing, recovery=recovery)
    return failing(flows, Failure("", 0.0, rate=0.25), settings=settings, size=4 * MB)[0]


def test_switches_avoid_a_slow_uplink_where_senders_do_not():
    """An uplink at a quarter of its rate: taking turns, everything waits for it; by queues, the
    leaf's uplinks carry what they can together."""
    took = {routing: worn(routing).now_s for routing in ("spray", "adaptive")}
    assert took["spray"] == pytest.approx(4 * 4 * MB / 4 / (RATE / 4), rel=0.03)
    # Its queue is as long as the others' at the end, and drains four times as slowly.
    together = 4 * 4 * MB / (3.25 * RATE)
    assert together < took["adaptive"] < 1.1 * together


def test_what_goes_back_n_cannot_be_sprayed_where_paths_differ():
    """Receivers that take nothing out of order refuse what overtakes (why RoCE is not sprayed)."""
    back, repeat = (worn("spray", each) for each in ("go_back_n", "selective_repeat"))
    assert port_report(back).drops.sum() == port_report(repeat).drops.sum() == 0
    assert resent_bytes(repeat) == 0
    assert resent_bytes(back) > 4 * MB
    assert back.now_s > 1.5 * repeat.now_s


@pytest.mark.parametrize("recovery", ["selective_repeat", "go_back_n"])
def test_a_flow_goes_on_over_another_spine_once_a_failure_is_known(recovery):
    down = Failure("", at_s=100e-6, detected_s=250e-6)
    settings = replace(PATIENT, recovery=recovery)
    engine, (end,) = failing([(0, 4, 0)], down, settings=settings)
    assert port_report(engine).drops.sum() > 0
    # What was lost is sent again at its sender's next look; nothing else is lost after that.
    late = end - alone_s(16 * MB, 4)
    window_s = 1.25 * (2 * 4 * DELAY_S + 4 * 4096 / RATE)
    assert 250e-6 - window_s <= late <= 250e-6 + settings.timeout_s + 2 * window_s


def test_switches_that_route_packets_lose_only_what_waited():
    down = Failure("", at_s=100e-6, detected_s=1.0)
    adaptive = replace(PATIENT, routing="adaptive")
    flows = [(host, host + 4, 0) for host in range(4)]
    engine, took = failing(flows, down, settings=adaptive)
    assert resent_bytes(engine) <= 4 * 4096
    # Three uplinks carry what four did.
    left = 4 * (16 * MB - 100e-6 * RATE) / (3 * RATE)
    assert took.max() == pytest.approx(100e-6 + left, rel=0.02)


def test_a_slow_link_takes_as_long_as_its_rate_says():
    worn = Failure("", at_s=100e-6, rate=0.25, until_s=900e-6)
    engine, (end,) = failing([(0, 4, 0)], worn)
    assert resent_bytes(engine) == 0
    lost_s = 800e-6 * 0.75
    assert end == pytest.approx(alone_s(16 * MB, 4) + lost_s, rel=0.01)


def test_a_link_that_comes_back_is_used_again():
    gone = Failure("", at_s=100e-6, detected_s=1.0, until_s=500e-6)
    _, (end,) = failing([(0, 4, 0)], gone)
    late = end - alone_s(16 * MB, 4)
    assert 400e-6 - 30e-6 <= late <= 400e-6 + 2 * PATIENT.timeout_s


def test_flows_announced_later_avoid_what_is_known_to_be_down():
    down = Failure("", at_s=10e-6, detected_s=10e-6)
    engine, _ = failing([(0, 4, 0)], down, size=MB)
    before = port_report(engine).drops.sum()
    later = engine.add(
        FABRIC.routes([(1, 5, 0)]), MB, engine.now_s, others=over_other_spines([(1, 5, 0)])
    )
    began_s = engine.now_s
    engine.advance()
    assert engine.completion_s(later)[0] - began_s == pytest.approx(alone_s(MB, 4), rel=0.01)
    assert port_report(engine).drops.sum() == before


@pytest.mark.parametrize(
    ("failure", "settings", "field"),
    [
        (Failure("", at_s=-1.0), PATIENT, "network.failures[0].at_s"),
        (Failure("", at_s=0.0, rate=1.0), PATIENT, "network.failures[0].rate"),
        (Failure("", at_s=1.0, until_s=1.0), PATIENT, "network.failures[0].until_s"),
        (Failure("", at_s=1.0), PacketSettings(), "network.packet.recovery"),
    ],
)
def test_impossible_failures_are_refused(failure, settings, field):
    with pytest.raises(InputError) as refused:
        failing([(0, 4, 0)], failure, settings=settings)
    assert refused.value.field == field


def test_a_failure_that_cuts_a_flow_off_is_refused():
    engine = FailingEngine(
        np.full(FABRIC.links, RATE), DELAY_S, 4, PATIENT, [(Failure("", 1e-6), [32])]
    )
    engine.add(FABRIC.routes([(0, 4, 0)]), 100 * MB)
    with pytest.raises(InputError, match="no path"):
        engine.advance()
