"""Telling another program; what goes wrong is said in words."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from trainscout.planning.webhook import post


@pytest.fixture
def server():
    taken = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            taken.append(
                json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
            )
            self.send_response(204 if self.path == "/good" else 500)
            self.end_headers()

        do_GET = do_POST  # noqa: N815 - as the server names it

        def log_message(self, *_):
            """Quiet."""

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}", taken
    listening.shutdown()
    listening.server_close()


def test_what_is_posted_arrives_as_json(server):
    address, taken = server
    assert post(f"{address}/good", {"changed": True}) is None
    assert taken == [{"changed": True}]


def test_a_server_that_fails_is_said(server):
    address, _ = server
    assert "500" in (post(f"{address}/bad", {}) or "")


def test_nobody_listening_is_said():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "refused" in (post(f"http://127.0.0.1:{port}/", {}) or "")


def test_a_silent_server_is_not_waited_for():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        problem = post(f"http://127.0.0.1:{silent.getsockname()[1]}/", {}, timeout_s=0.2)
    assert "timed out" in (problem or "")


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_nobody_else_is_told(server, code):
    address, taken = server
    sent_on = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self):
            sent_on.append(self.path)
            self.send_response(code)
            self.send_header("Location", f"{address}/good")
            self.end_headers()

        def log_message(self, *_):
            """Quiet."""

    other = HTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    problem = post(f"http://127.0.0.1:{other.server_port}/token", {"changed": True})
    other.shutdown()
    other.server_close()
    assert sent_on == ["/token"]
    assert taken == []
    assert f"{code}" in problem
    assert "redirects are not followed" in problem
