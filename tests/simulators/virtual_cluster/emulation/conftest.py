"""Ranks are emulated with a compiler; elsewhere these tests are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.needs import emulation_misses

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = emulation_misses()
    if reason:
        for item in items:
            if FOLDER in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))
