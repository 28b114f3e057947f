"""Tells another program, over HTTP, how a run came out."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any

from trainscout.simulators.predictor.question.redaction import visible

TIMEOUT_S = 10.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """What is posted is for the address that the user gave, which may hold a token, and for nobody
    whom that names; besides, a POST that is sent on would lose its content."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def post(address: str, content: Mapping[str, Any], timeout_s: float = TIMEOUT_S) -> str | None:
    """POST ``content`` as JSON; returns what went wrong in words, None when it was taken."""
    request = urllib.request.Request(
        address,
        json.dumps(content, allow_nan=False).encode(),
        {"Content-Type": "application/json", "User-Agent": "trainscout"},
        method="POST",
    )
    try:
        with _OPENER.open(request, timeout=timeout_s):
            return None
    except urllib.error.HTTPError as error:
        sent_on = ", and redirects are not followed" if 300 <= error.code < 400 else ""
        return f"it answered {error.code} {visible(str(error.reason))}{sent_on}"
    except urllib.error.URLError as error:
        return str(error.reason)
    except (HTTPException, ValueError) as error:
        # What these say may hold the address, or what a server would have a terminal do.
        return type(error).__name__
    except OSError as error:
        return str(error) or type(error).__name__
