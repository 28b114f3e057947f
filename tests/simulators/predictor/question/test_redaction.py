"""What is shown of addresses and settings: no password, nothing that a terminal obeys."""

import pytest

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.redaction import redacted, redacted_text, visible


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:MARKED@host/db",
        "postgresql+psycopg://me:MARKED@host:5432/db?x=1",
        "http://me:MAR@KED/MARKED@host",
        "http://:MARKED@host",
        "https://MARKED@host/path",
        "https://host/path?token=MARKED&x=1",
        "webhook=https://hooks.example.com/services/MARKED",
        "webhook=https://example.com/?q=MARKED",
        "tracking.uri=http://a:MARKED@b,http://c:MARKED@d",
        "executor.options.api_key=MARKED",
        "it said: 'http://me:MARKED@host' is down",
    ],
)
def test_no_secret_is_shown(address):
    assert "MARKED" not in redacted_text(address)
    assert "MARKED" not in str(InputError("search.storage", address, "is wrong"))


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me@host/db",
        "/a/path:with@signs",
        "sqlite:///mlflow.db",
        "http://host:5000/path",
        "training.tokens=2e12 and space=moye",
        "webhook=null",
        "http://a:1 and b@c",
    ],
)
def test_the_rest_is_shown_as_it_is(text):
    assert redacted_text(text) == text


def test_settings_keep_their_shape():
    settings = {
        "webhook": "https://hooks.example.com/services/MARKED?x=MARKED",
        "executor": {"options": {"password": "MARKED", "pin": 1, "TOKEN": None}},
        "tracking": {"uri": "http://me:MARKED@host", "timeout_s": 3.0},
        "overrides": ["+webhook=http://host/MARKED", "a.db_password=MARKED", "seed=1"],
    }
    assert redacted(settings) == {
        "webhook": "https://hooks.example.com/***",
        "executor": {"options": {"password": "***", "pin": 1, "TOKEN": None}},
        "tracking": {"uri": "http://me:***@host", "timeout_s": 3.0},
        "overrides": ["+webhook=http://host/***", "a.db_password=***", "seed=1"],
    }


def test_what_a_terminal_obeys_is_spelled():
    assert visible("a\x1b[31mred\x07\r\x9b\u202e.") == "a\\x1b[31mred\\x07\\r\\x9b\\u202e."
    assert visible("two\tlines\nµ – é") == "two\tlines\nµ – é"
    assert "\x1b" not in str(InputError("model.name", "\x1b[2J", "is wrong"))
