"""HTML files that need nothing else: inline style and script, and a policy of only those."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

_ASSETS = Path(__file__).with_name("search_page") / "assets"


def asset(name: str) -> str:
    """The text of a style or script that pages share."""
    return (_ASSETS / name).read_text(encoding="utf-8")


def content_policy(style: str, script: str) -> str:
    """A Content-Security-Policy under which nothing but these two inline texts is in force."""
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    """A source expression that allows exactly this inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
