"""The engine against its rules in plain Python, to the picosecond."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.predictor.network.packet.ports import port_report
from tests.simulators.predictor.network.packet.twin import Twin
from trainscout.simulators.predictor.network.packet.engine import PacketEngine
from trainscout.simulators.predictor.network.packet.settings import PacketSettings
from trainscout.simulators.predictor.network.topology.routing import Routes

LINKS = 6
MODES = [
    PacketSettings(),
    PacketSettings(window=8, pause_bytes=20_000, resume_bytes=12_000),
    # Equal thresholds, smaller than two packets: a pause and its end may be under way together.
    PacketSettings(window=8, pause_bytes=5_000, resume_bytes=5_000),
    PacketSettings(window=1, packet_bytes=1500, header_bytes=62),
]


@st.composite
def fabrics(draw):
    """Links of a ring of switches: every port both starts flows and passes them on.

    No route uses all links, so pauses cannot wait for each other in a circle.
    """
    rates = draw(st.lists(st.sampled_from([1e9, 3e9, 25e9]), min_size=LINKS, max_size=LINKS))
    delay_s = draw(st.sampled_from([0.0, 1e-7, 1e-6]))
    flows = []
    for number in range(draw(st.integers(1, 10))):
        first = draw(st.integers(0, LINKS - 1))
        hops = draw(st.integers(1, LINKS - first))
        after = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else set()
        flows.append(
            (
                list(range(first, first + hops)),
                draw(st.integers(1, 150_000)),
                draw(st.sampled_from([0.0, 4.096e-6, 10e-6])) + draw(st.integers(0, 3)) * 1e-6,
                draw(st.sampled_from([0.0, 2e-6])),
                sorted(after),
            )
        )
    return rates, delay_s, flows


@given(fabrics(), st.sampled_from(MODES))
def test_engine_and_twin_agree_to_the_picosecond(fabric, mode):
    rates, delay_s, flows = fabric
    twin = Twin(rates, delay_s, mode)
    for path, size, start_s, lag_s, after in flows:
        twin.add(path, size, start_s, lag_s, after)
    expected = twin.play()
    engine = PacketEngine(rates, delay_s, LINKS, mode)
    links = np.full((len(flows), LINKS), -1)
    for row, (path, *_) in enumerate(flows):
        links[row, : len(path)] = path
    numbers = engine.add(
        Routes(links, np.zeros(len(flows))),
        [size for _, size, _, _, _ in flows],
        [start for _, _, start, _, _ in flows],
        after=[(child, parent) for child, flow in enumerate(flows) for parent in flow[4]],
        delay_s=[lag for _, _, _, lag, _ in flows],
    )
    engine.advance()
    assert np.rint(engine.completion_s(numbers) * 1e12).tolist() == expected
    report = port_report(engine)
    assert report.bytes_sent.tolist() == [port.bytes_sent for port in twin.ports]
    assert report.pauses.tolist() == [port.pauses for port in twin.ports]
