"""Against ns-3, which nobody here wrote; skipped where its wheel or a compiler is missing.

ns-3 sends UDP at line rate: nothing holds senders back, so the engine's windows are wide open
and its pauses off. ns-3 has neither pauses nor DCQCN: those have no referee.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.simulators.predictor.network.packet.fabrics import DELAY_S, RATE, LeafSpine
from trainscout.simulators.predictor.network.packet.settings import PacketSettings

SOURCE = Path(__file__).with_name("ns3_referee.cc")
HEADER = 30  # PPP, IP and UDP
PACKETS = 977
FABRIC = LeafSpine(64, 8, 8)
FREE = PacketSettings(header_bytes=HEADER, window=1000, pause_bytes=None, queue_bytes=1 << 40)

WHEEL = importlib.util.find_spec("ns3")
COMPILER = shutil.which("g++")
pytestmark = pytest.mark.skipif(
    WHEEL is None or COMPILER is None, reason="needs the ns3 wheel and g++"
)


@pytest.fixture(scope="module")
def referee(tmp_path_factory):
    home = Path(next(iter(WHEEL.submodule_search_locations)))
    (core,) = (home / "lib64").glob("libns3.*-core.so")
    version = core.name.removeprefix("libns").removesuffix("-core.so")
    parts = ("core", "network", "internet", "point-to-point", "stats", "traffic-control")
    program = tmp_path_factory.mktemp("ns3") / "referee"
    subprocess.run(
        [COMPILER, "-std=c++20", "-O1", f"-I{home / 'include'}", str(SOURCE),
         f"-L{home / 'lib64'}", f"-Wl,-rpath,{home / 'lib64'}",
         *(f"-lns{version}-{part}" for part in parts), "-o", str(program)],
        check=True,
    )  # fmt: skip
    return program


def both(referee, flows, packets=PACKETS):
    """Completion times by ns-3 and by the engine, the CPU seconds ns-3 took, and the engine."""
    shape = (FABRIC.hosts, FABRIC.leaves, FABRIC.spines)
    lines = [" ".join(str(round(each)) for each in (*shape, RATE * 8, DELAY_S * 1e12, 4096, HEADER,
                                                    len(flows)))]  # fmt: skip
    lines += [f"{a} {b} {spine} {packets}" for a, b, spine in flows]
    done = subprocess.run(
        [str(referee)], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    *ends, cpu_s = (float(line) for line in done.stdout.split())
    engine = FABRIC.engine(FREE)
    numbers = engine.add(FABRIC.routes(flows), 4096 * packets)
    engine.advance()
    return np.array(ends), engine.completion_s(numbers), cpu_s


def test_a_ring_takes_as_long_as_in_ns3(referee):
    ring = [(host, (host + 1) % 64, host % 8) for host in range(64)]
    expected, ends, _ = both(referee, ring)
    np.testing.assert_allclose(ends, expected, rtol=1e-3)


def test_flows_that_collide_on_an_uplink_take_as_long_as_in_ns3(referee):
    expected, ends, _ = both(referee, [(0, 8, 3), (1, 17, 3), (2, 26, 3), (3, 35, 4)])
    np.testing.assert_allclose(ends, expected, rtol=1e-3)


def test_an_incast_takes_as_long_as_in_ns3(referee):
    expected, ends, _ = both(referee, [(8 * leaf, 0, leaf) for leaf in range(1, 8)])
    np.testing.assert_allclose(np.sort(ends), np.sort(expected), rtol=1e-3)
