"""Against SimGrid, which nobody here wrote; skipped where no interpreter has it.

Debian's ``python3-simgrid`` belongs to the system's interpreter, so it is looked for there too.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.simulators.predictor.network.topology.test_network import fabric_named, wired
from trainscout.simulators.predictor.network.flow.engine import FlowEngine
from trainscout.simulators.predictor.network.topology.network import Network
from trainscout.simulators.predictor.network.topology.routing import find_routes

SCRIPT = Path(__file__).with_name("simgrid_referee.py")


def interpreter() -> str | None:
    for python in (sys.executable, shutil.which("python3", path="/usr/bin")):
        if python:
            found = subprocess.run([python, "-c", "import simgrid"], capture_output=True)
            if found.returncode == 0:
                return python
    return None


PYTHON = interpreter()
pytestmark = pytest.mark.skipif(PYTHON is None, reason="no interpreter has SimGrid")


def both(
    network: Network,
    source: np.ndarray,
    destination: np.ndarray,
    size_bytes: np.ndarray,
    start_s: np.ndarray,
) -> tuple[np.ndarray, list[float]]:
    """Times at which all bytes are sent: ours and SimGrid's."""
    routes = find_routes(network, source, destination)
    engine = FlowEngine(network.rate_bytes_per_s, network.max_hops)
    flows = engine.add(routes, size_bytes, start_s)
    engine.advance()
    question = {
        "rates": network.rate_bytes_per_s.tolist(),
        "flows": [
            [row[row >= 0].tolist(), size, start]
            for row, size, start in zip(
                routes.links, size_bytes.tolist(), start_s.tolist(), strict=True
            )
        ],
    }
    assert PYTHON is not None
    run = subprocess.run(
        [PYTHON, str(SCRIPT)],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=True,
    )
    return engine.completion_s(flows) - routes.latency_s, json.loads(run.stdout)


def test_ring_and_colliding_flows_end_when_simgrid_says() -> None:
    network = wired("h100_512", fabric_named("leaf_spine", oversubscription=2.0))
    rank = np.arange(64)
    # One GPU a node; neighbours share leaves, a distance of nine nodes crosses spines.
    for shift in (1, 9):
        ours, theirs = both(
            network, rank * 8, (rank + shift) % 64 * 8, np.full(64, 16e6), np.zeros(64)
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
        assert (ours.max() > 16e6 / 50e9 * 1.5) == (shift == 9)


def test_random_sizes_and_starts_end_when_simgrid_says() -> None:
    network = wired("h100_64", fabric_named("rail_optimised"), oversubscription=3.0)
    random = np.random.default_rng(11)
    source = random.integers(0, 64, 200)
    ours, theirs = both(
        network,
        source,
        (source + random.integers(1, 64, 200)) % 64,
        random.integers(1_000_000, 64_000_000, 200).astype(float),
        random.uniform(0, 1e-3, 200),
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
