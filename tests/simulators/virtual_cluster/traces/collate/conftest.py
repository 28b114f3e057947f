"""The traces of all ranks of a small job."""

from __future__ import annotations

import pytest

from tests.simulators.virtual_cluster.traces.collate.ranks import LAYOUT, traces_of
from trainscout.simulators.virtual_cluster.traces.events import Trace


@pytest.fixture(scope="package")
def everybody() -> list[Trace]:
    return traces_of(LAYOUT, range(LAYOUT.world_size))
