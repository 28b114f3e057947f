"""The traces of all ranks of a small job."""

from __future__ import annotations

import pytest

from simulators.traces.events import Trace
from tests.simulators.traces.collate.ranks import LAYOUT, traces_of


@pytest.fixture(scope="package")
def everybody() -> list[Trace]:
    return traces_of(LAYOUT, range(LAYOUT.world_size))
