"""Telling another program; what goes wrong is said in words."""

import socket

import pytest

from tests.listener import listener
from trainscout.planning.webhook import post


@pytest.fixture
def server():
    with listener(lambda path: 204 if path == "/good" else 500) as started:
        yield started


def test_what_is_posted_arrives_as_json(server):
    address, taken = server
    assert post(f"{address}/good", {"changed": True}) is None
    assert taken == [("/good", {"changed": True})]


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
    with listener(lambda path: code, f"{address}/good") as (elsewhere, sent_on):
        problem = post(f"{elsewhere}/token", {"changed": True})
    assert [path for path, _ in sent_on] == ["/token"]
    assert taken == []
    assert f"{code}" in problem
    assert "redirects are not followed" in problem
