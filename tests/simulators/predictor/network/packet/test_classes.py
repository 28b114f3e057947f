"""Traffic classes: who goes first, who gets how much, and that nobody waits for nobody."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulators.predictor.network.packet.fabrics import RATE, LeafSpine, alone_s
from tests.simulators.predictor.network.packet.ports import port_report
from trainscout.simulators.predictor.network.packet.settings import PacketSettings
from trainscout.simulators.predictor.question.errors import InputError

FABRIC = LeafSpine()
SIZE = 4096 * 1000
TWO = {"pp": 0, "dp": 1}
# From two leaves into one host, and two of one host.
MEETING = ([(4, 0, 0), (8, 0, 1)], [(4, 0, 0), (4, 8, 1)])


def ends(flows, classes, **settings):
    engine = FABRIC.engine(PacketSettings(class_of=TWO, **settings))
    numbers = engine.add(FABRIC.routes(flows), SIZE, traffic_class=classes)
    engine.advance()
    return engine, engine.completion_s(numbers)


@pytest.mark.parametrize("flows", MEETING)
def test_the_first_class_is_as_fast_as_alone(flows):
    _, (first, second) = ends(flows, [0, 1], window=2)
    # A packet of the other class may be on the wire at every hop.
    assert first <= alone_s(SIZE, 4) + 4 * 4096 / RATE
    assert second == pytest.approx(alone_s(2 * SIZE, 4), rel=0.01)


@pytest.mark.parametrize("flows", MEETING)
@pytest.mark.parametrize("weights", [(3, 1), (1, 1), (2, 5)])
def test_classes_that_wait_share_by_weight(flows, weights):
    """The heavier one's end is its size at its share; the other has the rest to itself then."""
    _, took = ends(flows, [0, 1], weights=weights, window=4)
    heavier = int(np.argmax(weights))
    share = weights[heavier] / sum(weights)
    assert took[heavier] == pytest.approx(alone_s(SIZE / share, 4), rel=0.015)
    assert took.max() == pytest.approx(alone_s(2 * SIZE, 4), rel=0.01)


def test_a_class_alone_has_the_whole_link():
    plain = FABRIC.engine()
    plain.add(FABRIC.routes(MEETING[0]), SIZE)
    plain.advance()
    for number in (0, 1):
        engine, took = ends(MEETING[0], number, weights=(1, 4))
        assert took.max() == plain.now_s
        report, expected = port_report(engine), port_report(plain)
        np.testing.assert_array_equal(report.bytes_sent, expected.bytes_sent)


def test_pauses_of_a_class_hold_up_no_other():
    """Eleven senders pause what comes to host 0 in class 1; class 0 crosses the same uplinks."""
    crowd = [(host, 0, 0) for host in range(5, 16)]
    tight = {"pause_bytes": 50_000, "resume_bytes": 30_000, "window": 8}
    took = {}
    for number in (1, 0):
        engine, both = ends([*crowd, (4, 1, 0)], [1] * 11 + [number], **tight)
        assert port_report(engine).pauses.sum() > 0
        took[number] = both[-1]
    assert took[0] <= alone_s(SIZE, 4) + 4 * 4096 / RATE
    assert took[1] > 2 * took[0]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"class_of": {"pp": -1}}, "network.packet.class_of.pp"),
        ({"class_of": {"pp": 8}}, "network.packet.class_of.pp"),
        ({"weights": (0, 1)}, "network.packet.weights"),
        ({"weights": (1, 17)}, "network.packet.weights"),
        ({"weights": (1,), "class_of": TWO}, "network.packet.weights"),
        ({"weights": (1,) * 9}, "network.packet.weights"),
        ({"routing": "pray"}, "network.packet.routing"),
        ({"recovery": "arq"}, "network.packet.recovery"),
        ({"paths": 0}, "network.packet.paths"),
        ({"timeout_s": 0.0}, "network.packet.timeout_s"),
    ],
)
def test_impossible_settings_are_refused(given, field):
    with pytest.raises(InputError) as refused:
        PacketSettings(**given).check()
    assert refused.value.field == field


def test_a_class_that_nobody_declared_is_refused():
    engine = FABRIC.engine()
    with pytest.raises(InputError) as refused:
        engine.add(FABRIC.routes(MEETING[0]), SIZE, traffic_class=1)
    assert refused.value.field == "flow.traffic_class"
