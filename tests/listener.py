"""A web server that takes what is POSTed to it."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


@contextmanager
def listener(
    status: Callable[[str], int] = lambda path: 200, location: str = ""
) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Its address, and of every request the path and the JSON; ``status`` answers a path."""
    taken: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"] or 0))
            taken.append((self.path, json.loads(content or "{}")))
            self.send_response(status(self.path))
            if location:
                self.send_header("Location", location)
            self.end_headers()

        do_GET = do_POST  # noqa: N815 - as the server names it

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", taken
        server.shutdown()
