"""Take the pictures of the documentation, from a search made for it.

One search of the default question, kept in MLflow; its report and the compare view of its best
recipes, photographed in headless Chromium (`pip install -e '.[browser,plots]'`)::

    python -m docs.screenshots
"""

from __future__ import annotations

import argparse
import io
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from tests.browser import chromium, open_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[1]
QUESTION = ("model=gpt175b", "cluster=h800_96")
REPORT_SIZE = (1366, 900)
UI_SIZE = (1366, 900)
# MLflow draws its pages piece by piece and says nowhere when it is done.
SETTLED_MS = 5000
READY_S = 120.0


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.screenshots", description="Take the pictures of the documentation."
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images", help="folder")
    output = parser.parse_args(arguments).output
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        run = Path(folder)
        search(run)
        pictures = {**report_pictures(browser, run / "search"), **mlflow_pictures(browser, run)}
    for name, picture in pictures.items():
        (output / name).write_bytes(compressed(picture))
    return 0


def search(run: Path) -> None:
    """A search in ``run``: its files in ``search``, its runs in ``mlflow.db``."""
    command = [sys.executable, str(ROOT / "optimize.py"), *QUESTION, "hydra.run.dir=search"]
    subprocess.run(command, cwd=run, check=True, stdout=subprocess.DEVNULL)


def report_pictures(browser: Browser, directory: Path) -> dict[str, bytes]:
    """The top of the report, and the sections that need looking at, light and dark."""
    pictures = {}
    for scheme, sections in (("light", ("answer", "tradeoffs")), ("dark", ("why", "pipeline"))):
        opened = open_in(browser, directory / "report.html", size=REPORT_SIZE, scheme=scheme)
        page = opened.page
        page.wait_for_function("document.documentElement.dataset.ready === 'true'")
        for section in sections:
            page.evaluate(f"document.getElementById('{section}').scrollIntoView()")
            page.wait_for_timeout(500)
            pictures[f"report-{section}.png"] = page.screenshot()
        page.context.close()
    return pictures


def mlflow_pictures(browser: Browser, run: Path) -> dict[str, bytes]:
    """MLflow's compare view of the best recipes: parallel coordinates and a scatter plot."""
    experiment, recipes = recipe_runs(run / "mlflow.db")
    with mlflow_ui(run) as base:
        home = f"{base}/?workflowType=machine_learning#/experiments/{experiment}/runs"
        page = open_in(browser, home, size=UI_SIZE).page
        page.wait_for_timeout(SETTLED_MS)
        # An assistant's panel, which stays closed afterwards.
        panel = page.locator('button[aria-label*="lose"]')
        if panel.count():
            panel.last.click()
        chosen = f"runs={quote(json.dumps(recipes))}&experiments={quote(json.dumps([experiment]))}"
        page.goto(f"{base}/#/compare-runs?{chosen}")
        page.reload()
        wait_for_plot(page)
        pictures = {"mlflow-compare.png": page.screenshot()}
        page.get_by_role("tab", name="Scatter Plot").click()
        wait_for_plot(page)
        choose(page, 0, "memory/needed_gib")
        choose(page, 1, "step_time_s")
        pictures["mlflow-scatter.png"] = page.screenshot()
        page.context.close()
    return pictures


def wait_for_plot(page: Page) -> None:
    """Return once the visible tab's plot is drawn."""
    page.locator(".js-plotly-plot:visible .main-svg").first.wait_for(timeout=READY_S * 1e3)
    page.wait_for_timeout(SETTLED_MS)


def choose(page: Page, at: int, name: str) -> None:
    """Pick an axis of a plot of the compare view."""
    page.locator("[role=combobox]").nth(at).click()
    page.get_by_role("option", name=name, exact=True).first.click()
    page.wait_for_timeout(SETTLED_MS // 4)


def recipe_runs(database: Path) -> tuple[str, list[str]]:
    """The experiment and the runs of the best recipes, best first."""
    with sqlite3.connect(database) as connection:
        rows = connection.execute(
            "select r.experiment_id, r.run_uuid from runs r"
            " join tags k on k.run_uuid = r.run_uuid and k.key = 'kind' and k.value = 'recipe'"
            " join tags p on p.run_uuid = r.run_uuid and p.key = 'rank'"
            " order by cast(p.value as integer)"
        ).fetchall()
    return str(rows[0][0]), [str(run) for _, run in rows]


@contextmanager
def mlflow_ui(run: Path) -> Iterator[str]:
    """``mlflow ui`` on the runs of a directory; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = ("--backend-store-uri", "sqlite:///mlflow.db", "--workers", "1", "--port", str(port))
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "ui", *store],
        cwd=run,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    base = f"http://127.0.0.1:{port}"
    try:
        wait_for(base)
        yield base
    finally:
        server.terminate()
        server.wait()


def wait_for(base: str) -> None:
    """Return once a server answers.

    Raises:
        TimeoutError: when it does not within ``READY_S``.
    """
    end_s = time.monotonic() + READY_S
    while time.monotonic() < end_s:
        try:
            with urllib.request.urlopen(base, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise TimeoutError(f"{base} does not answer")


def compressed(picture: bytes) -> bytes:
    """A PNG of at most 256 colours: a third of the size, and no difference to be seen."""
    from PIL import Image

    small = io.BytesIO()
    # No dithering: it would speckle plain areas.
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
