"""Headless Chromium for tests of pages, through Playwright; fixtures are in ``conftest.py``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
LAPTOP = (1366, 768)


def chromium_path() -> str | None:
    """The browser that is installed, None where there is none."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that runs without a screen.

    Raises:
        ImportError: without Playwright.
        FileNotFoundError: without a browser.
    """
    from playwright.sync_api import sync_playwright

    path = chromium_path()
    if path is None:
        raise FileNotFoundError(f"none of {', '.join(_NAMES)} is installed")
    # Chromium refuses to run as root inside its sandbox.
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Opened:
    """A page that was opened, and what went on in it.

    ``errors``: uncaught exceptions, and what the console was told as error or warning;
    ``requests``: URLs it asked for besides its own.
    """

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


OpenPage = Callable[..., Opened]


def open_in(
    browser: Browser,
    where: Path | str,
    size: tuple[int, int] = LAPTOP,
    scheme: str = "light",
    **context: Any,
) -> Opened:
    """Open a file or URL in a window of its own, ``size`` pixels wide and high; close it with
    ``opened.page.context.close()``."""
    url = where.resolve().as_uri() if isinstance(where, Path) else where
    width, height = size
    settings = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
    opened = Opened(browser.new_context(**settings, **context).new_page())
    page = opened.page

    def note(stated: ConsoleMessage) -> None:
        if stated.type in ("error", "warning"):
            opened.errors.append(stated.text)

    page.on("pageerror", lambda error: opened.errors.append(str(error)))
    page.on("console", note)
    page.on("request", lambda asked: asked.url == url or opened.requests.append(asked.url))
    page.goto(url)
    return opened
