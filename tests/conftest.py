"""Fixtures for tests of pages; they are skipped where Playwright or a browser is missing."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

import tests.warm.processes  # noqa: F401
from tests.browser import Opened, OpenPage, chromium, chromium_path, open_in
from tests.warm import client
from tests.warm.session import warm_python, warm_ranks

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from xdist.remote import Producer
    from xdist.scheduler.loadfile import LoadFileScheduling


# Few and always the same examples on each change, many and new ones with
# --hypothesis-profile=deep. Tests that need more or fewer say so by a share of these.
_ANY_SPEED = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
settings.register_profile(
    "quick", max_examples=25, derandomize=True, deadline=None, suppress_health_check=_ANY_SPEED
)
settings.register_profile(
    "deep", max_examples=500, deadline=None, suppress_health_check=_ANY_SPEED
)
settings.load_profile("quick")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """One pair of servers for all workers: they import when somebody first asks."""
    os.environ |= {client.RANKS: warm_ranks(), client.COMMANDS: warm_python()}


# What takes longest comes first, so that two workers end together; first of all what compiles the
# engines of networks, so that those who come later find them compiled.
_NETWORK = "simulators/predictor/network"
# What starts clusters and kills workers waits more than it computes, and not beside its like.
_CLUSTERS = ("optimizer/test_executors.py", "optimizer/test_sharing.py")
_LONG = (
    *(_NETWORK, "docs", "e2e", *_CLUSTERS),
    *("simulators/virtual_cluster", "optimizer", "test_portability.py"),
    *("trainscout/test_api.py", "trainscout/commands", "reports/launch", "benchmarks"),
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent

    @functools.cache
    def place(path: Path) -> int:
        name = path.relative_to(here).as_posix()
        return next((at for at, long in enumerate(_LONG) if name.startswith(long)), len(_LONG))

    items.sort(key=lambda item: place(item.path))
    if config.getoption("--hypothesis-profile") != "deep":
        deep = [item for item in items if item.get_closest_marker("deep")]
        config.hook.pytest_deselected(items=deep)
        items[:] = [item for item in items if item not in deep]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected and imported stays to the end: no use to look for garbage in it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        # As the commands have it: looks for cycles cost CPU seconds, and tests leave few.
        gc.set_threshold(200_000, 50, 100)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Files are what workers take, so that fixtures are made once; of the commands of the
    documentation, which share nothing, pages: one worker would be left with them alone. Tests of
    networks are taken together, since each worker would compile the engines for itself, and so are
    those of clusters: two workers would slow each other's down."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler.loadfile import LoadFileScheduling

    class FilesAndPages(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if f"/{_NETWORK}/" in nodeid:
                return _NETWORK
            if any(f"/{name}::" in nodeid for name in _CLUSTERS):
                return _CLUSTERS[0]
            pages = "test_commands_run.py" in nodeid
            return nodeid if pages else str(super()._split_scope(nodeid))

    return FilesAndPages(config, log)


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
