"""Fixtures for tests of pages; they are skipped where Playwright or a browser is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser import Opened, OpenPage, chromium, chromium_path, open_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser


# Playwright keeps an event loop running in this thread, which would be in the way of other tests.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium, started once a module."""
    pytest.importorskip("playwright")
    if chromium_path() is None:
        pytest.skip("no Chromium or Chrome is installed")
    with chromium() as started:
        yield started


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """``open_page(path_or_url, size=(1366, 768), scheme="light")``: an ``Opened`` page in a window
    of its own, closed when the test ends."""
    contexts = []

    def open_one(where: Path | str, **settings: Any) -> Opened:
        opened = open_in(browser, where, **settings)
        contexts.append(opened.page.context)
        return opened

    yield open_one
    for context in contexts:
        context.close()
